CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM s AS SELECT auction, window_end, count(*) AS n FROM bids GROUP BY auction EMIT CHANGES;

CREATE STREAM per_minute AS
SELECT auction, window_end, count(*) AS n FROM bids GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE);
CREATE STREAM per_hour AS
SELECT auction, sum(n) AS n FROM per_minute GROUP BY auction, TUMBLE(window_time, INTERVAL '1' HOUR);
