SELECT
    auction,
    strftime(date_time, '%Y-%m-%d') AS day,
    count(*) AS total_bids,
    count_if(price < 10000) AS rank1_bids,
    count_if(price BETWEEN 10000 AND 999999) AS rank2_bids,
    count_if(price > 999999) AS rank3_bids,
    min(price) AS min_price,
    max(price) AS max_price,
    sum(price) / count(*) AS avg_price,
    sum(price) AS sum_price
FROM bid
GROUP BY auction, day;
