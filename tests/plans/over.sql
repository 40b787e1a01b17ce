CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM running AS
SELECT auction, price, ts,
    sum(price) OVER (PARTITION BY auction ORDER BY ts ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS last_ten,
    max(price) OVER (
        PARTITION BY auction ORDER BY ts RANGE BETWEEN INTERVAL '1' MINUTE PRECEDING AND CURRENT ROW
    ) AS last_minute,
    lag(price) OVER (PARTITION BY auction ORDER BY ts) AS before
FROM bids;

CREATE STREAM of_groups AS
SELECT window_end, count(*) AS n, sum(count(*)) OVER (ORDER BY window_end) AS so_far
FROM bids
GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE);
