CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH (connector = 'memory');

CREATE STREAM latest AS
SELECT b.price, a.seller
FROM bids AS b
JOIN (
    SELECT auction, seller, ts FROM asks
    QUALIFY row_number() OVER (PARTITION BY auction ORDER BY ts DESC) = 1
) FOR SYSTEM_TIME AS OF b.ts AS a ON b.auction = a.auction;

CREATE STREAM latest_rows AS
SELECT * FROM asks QUALIFY row_number() OVER (PARTITION BY auction ORDER BY ts DESC) = 1 EMIT CHANGES;

CREATE STREAM latest_but_cheap AS
SELECT b.price, a.seller
FROM bids AS b LEFT JOIN latest_rows FOR SYSTEM_TIME AS OF b.ts AS a ON a.auction = b.auction
WHERE a.price < 10;

CREATE STREAM first_seller AS
SELECT b.price, a.seller, a.rn
FROM bids AS b
LEFT JOIN (
    SELECT * FROM (
        SELECT *, row_number() OVER (PARTITION BY auction ORDER BY ts) AS rn FROM asks
    ) AS x WHERE rn = 1
) FOR SYSTEM_TIME AS OF b.ts AS a ON b.auction = a.auction;

CREATE STREAM chained AS
SELECT b.price, a.seller, c.price AS other, b.ts
FROM bids AS b
JOIN latest_rows FOR SYSTEM_TIME AS OF b.ts AS a ON b.auction = a.auction
LEFT JOIN latest_rows FOR SYSTEM_TIME AS OF b.ts AS c ON a.seller = c.auction;
