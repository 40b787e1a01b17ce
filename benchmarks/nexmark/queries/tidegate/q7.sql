-- NEXMark q7. The highest bid of every 10 seconds.

CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid');

CREATE STREAM q7 AS
SELECT b.auction, b.price, b.bidder, b.date_time, b.extra
FROM bid AS b
JOIN (
    SELECT max(price) AS maxprice, window_end
    FROM bid
    GROUP BY TUMBLE(date_time, INTERVAL '10' SECOND)
) AS b1
    ON b.price = b1.maxprice
    AND b.date_time BETWEEN b1.window_end - INTERVAL '10' SECOND AND b1.window_end;
