CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH (connector = 'memory');

CREATE STREAM matched AS
SELECT b.bidder, a.seller, b.price - a.price AS margin
FROM bids AS b, asks AS a
WHERE a.auction = b.auction
  AND a.ts BETWEEN b.ts - INTERVAL '10' MINUTE AND b.ts
  AND b.price > 0
  AND a.seller <> b.bidder;
