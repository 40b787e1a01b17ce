CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM so_far AS
SELECT window_start, window_end, window_time, sum(price) AS turnover, count(DISTINCT bidder) AS bidders
FROM bids
GROUP BY CUMULATE(ts, INTERVAL '10' MINUTE, INTERVAL '1' DAY)
EMIT FINAL;
