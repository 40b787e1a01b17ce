CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, tags ARRAY<STRING>,
    ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM counts AS
SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT ON UPDATE;

CREATE STREAM busy AS SELECT auction, n FROM counts WHERE n > 10 AND auction < 1000;
