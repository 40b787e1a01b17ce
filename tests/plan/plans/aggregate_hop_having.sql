CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM busy AS
SELECT auction, window_end, count(*) FILTER (WHERE price > 10) AS n, avg(price) AS average
FROM bids
WHERE channel <> 'test'
GROUP BY auction, HOP(ts, INTERVAL '10' SECOND, INTERVAL '1' MINUTE)
HAVING count(*) > 100 AND max(price) < 1000;
