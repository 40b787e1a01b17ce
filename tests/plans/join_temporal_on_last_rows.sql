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
