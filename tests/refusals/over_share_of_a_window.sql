CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM s AS SELECT auction, window_start, count(*) / sum(count(*)) OVER (PARTITION BY window_start) AS share
FROM bids GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE);
