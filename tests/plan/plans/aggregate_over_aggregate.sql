CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM per_minute AS
SELECT auction, window_start, window_end, window_time, count(*) AS n
FROM bids
GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE);

CREATE STREAM per_hour AS
SELECT auction, window_start, window_end, sum(n) AS n
FROM per_minute
GROUP BY auction, TUMBLE(window_time, INTERVAL '1' HOUR);

CREATE STREAM histogram AS
SELECT n, count(*) AS auctions FROM per_hour GROUP BY n EMIT CHANGES;
