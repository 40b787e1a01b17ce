SELECT
    strftime(date_time, '%Y-%m-%d') AS day,
    count(*) AS total_bids,
    count_if(price < 10000) AS rank1_bids,
    count_if(price BETWEEN 10000 AND 999999) AS rank2_bids,
    count_if(price > 999999) AS rank3_bids,
    len(list_distinct(list(bidder))) AS total_bidders,
    len(list_distinct(list(CASE WHEN price < 10000 THEN bidder END))) AS rank1_bidders,
    len(list_distinct(list(CASE WHEN price BETWEEN 10000 AND 999999 THEN bidder END))) AS rank2_bidders,
    len(list_distinct(list(CASE WHEN price > 999999 THEN bidder END))) AS rank3_bidders,
    len(list_distinct(list(auction))) AS total_auctions,
    len(list_distinct(list(CASE WHEN price < 10000 THEN auction END))) AS rank1_auctions,
    len(list_distinct(list(CASE WHEN price BETWEEN 10000 AND 999999 THEN auction END))) AS rank2_auctions,
    len(list_distinct(list(CASE WHEN price > 999999 THEN auction END))) AS rank3_auctions
FROM bid
GROUP BY ALL;
