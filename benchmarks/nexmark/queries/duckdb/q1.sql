SELECT auction, bidder, CAST(price AS DECIMAL(20, 0)) * 0.908 AS price, date_time, extra
FROM bid;
