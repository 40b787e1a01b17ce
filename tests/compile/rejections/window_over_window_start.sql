CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM per_minute AS
SELECT window_start, count(*) AS n FROM bids GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE);
CREATE STREAM per_hour AS
SELECT window_end, sum(n) AS n FROM per_minute GROUP BY TUMBLE(window_start, INTERVAL '1' HOUR);
