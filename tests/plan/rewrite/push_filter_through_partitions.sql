CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, tags ARRAY<STRING>,
    ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM top AS
SELECT * FROM (
    SELECT auction, price, bidder,
        row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS r FROM bids)
WHERE r <= 3 AND auction > 5 AND bidder > 7 EMIT CHANGES;

CREATE STREAM running AS
SELECT auction, price,
    max(price) OVER (PARTITION BY auction, channel ORDER BY ts ROWS 2 PRECEDING) AS high,
    min(price) OVER (PARTITION BY auction ORDER BY ts ROWS 2 PRECEDING) AS low
FROM bids QUALIFY auction > 5 AND channel = 'web' AND max(price) OVER (PARTITION BY auction, channel ORDER BY ts ROWS 2 PRECEDING) > 3;
