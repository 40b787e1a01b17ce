CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM per_day AS
SELECT auction, window_start, window_end, count(*) AS n, max(price) AS top
FROM bids
GROUP BY auction, TUMBLE(ts, INTERVAL '1' DAY, INTERVAL '-8' HOUR)
EMIT ON WINDOW CLOSE ALLOW LATENESS INTERVAL '30' SECOND LATE DATA TO late_bids;

CREATE STREAM too_late AS SELECT auction, price FROM late_bids;
