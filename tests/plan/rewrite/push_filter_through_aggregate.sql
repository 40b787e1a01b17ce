CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, tags ARRAY<STRING>,
    ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM per_minute AS
SELECT auction, window_end, count(*) AS n FROM bids
GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)
HAVING auction > 5 AND count(*) > 1 AND window_end > TIMESTAMP '2024-01-01 00:00:00';

CREATE STREAM sessions AS
SELECT upper(channel) AS c, count(*) AS n FROM bids
GROUP BY upper(channel), SESSION(ts, INTERVAL '1' MINUTE)
HAVING upper(channel) = 'WEB';

CREATE STREAM windows_below AS
SELECT window_end, count(*) AS n FROM TUMBLE(bids, ts, INTERVAL '1' MINUTE)
GROUP BY window_end HAVING window_end > TIMESTAMP '2024-01-01 00:00:00';

-- There is one row even if nothing passes.
CREATE STREAM total AS SELECT count(*) AS n FROM bids HAVING 1 > 2 EMIT CHANGES;

-- Late rows are kept as they came.
CREATE STREAM with_late AS
SELECT auction, window_end, count(*) AS n FROM bids
GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE) HAVING auction > 5
EMIT ON WINDOW CLOSE LATE DATA TO late_bids;
