CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, tags ARRAY<STRING>,
    ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM windowed AS
SELECT auction, window_end FROM TUMBLE(bids, ts, INTERVAL '1' MINUTE)
WHERE price > 10 AND window_end > TIMESTAMP '2024-01-01 00:00:00';

CREATE STREAM exploded AS
SELECT auction, tag FROM bids LATERAL VIEW explode(tags) t AS tag WHERE price > 10 AND tag = 'new';

-- A row without tags never meets the cast.
CREATE STREAM guarded AS
SELECT auction, tag FROM bids LATERAL VIEW explode(tags) t AS tag WHERE CAST(channel AS INT) > 1;
