CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM on_update AS
SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT ON UPDATE;

CREATE STREAM on_changes AS
SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT CHANGES;

CREATE STREAM now_and_then AS
SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT EVERY INTERVAL '10' SECOND;

CREATE STREAM total WITH (state_ttl = '1 day') AS
SELECT count(*) AS n, sum(price) AS turnover FROM bids EMIT ON UPDATE;

CREATE STREAM early_windows AS
SELECT auction, window_start, count(*) AS n
FROM bids GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE) EMIT ON UPDATE;
