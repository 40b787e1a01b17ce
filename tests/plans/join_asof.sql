CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH (connector = 'memory');

CREATE STREAM nearest AS
SELECT b.price, a.price AS ask, b.ts
FROM bids AS b ASOF JOIN asks AS a MATCH_CONDITION (b.ts >= a.ts) ON b.auction = a.auction;

CREATE STREAM nearest_or_none AS
SELECT b.price, a.price AS ask
FROM bids AS b ASOF LEFT JOIN asks AS a MATCH_CONDITION (b.ts > a.ts)
ON b.auction = a.auction AND a.price > 0;

CREATE STREAM nearest_price WITH (state_ttl = '1 hour') AS
SELECT b.price, a.price AS ask
FROM bids AS b ASOF JOIN asks AS a MATCH_CONDITION (b.price >= a.price) ON b.auction = a.auction
EMIT CHANGES;
