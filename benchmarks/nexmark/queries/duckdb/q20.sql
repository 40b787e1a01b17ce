SELECT
    bid.auction, bidder, price, channel, url, bid.date_time AS bid_date_time, bid.extra AS bid_extra,
    item_name, description, initial_bid, reserve, auction.date_time AS auction_date_time, expires,
    seller, category, auction.extra AS auction_extra
FROM auction
JOIN bid ON bid.auction = auction.id
WHERE category = 10;
