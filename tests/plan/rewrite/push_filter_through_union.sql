CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, tags ARRAY<STRING>,
    ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');
CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, weight DOUBLE, ts TIMESTAMP, WATERMARK FOR ts AS ts
) WITH (connector = 'memory');

CREATE STREAM both AS
SELECT * FROM (SELECT auction, price FROM bids UNION ALL SELECT auction, price FROM asks)
WHERE price > 10;

-- Members of other types are cast by the union.
CREATE STREAM mixed AS
SELECT * FROM (SELECT auction, price AS p FROM bids UNION ALL SELECT auction, weight FROM asks)
WHERE p > 10 AND auction = 1;
