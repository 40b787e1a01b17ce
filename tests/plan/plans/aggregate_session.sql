CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM visits AS
SELECT bidder, window_start, window_end, count(*) AS n
FROM bids
GROUP BY bidder, SESSION(ts, INTERVAL '10' MINUTE)
EMIT AFTER WATERMARK;

CREATE STREAM quiet_hours AS
SELECT window_start, window_end, count(*) AS n
FROM SESSION(bids, ts, INTERVAL '1' HOUR)
GROUP BY window_start, window_end;
