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

CREATE STREAM within_seconds AS
SELECT b.price, a.price AS ask, b.ts
FROM bids AS b ASOF JOIN asks AS a
MATCH_CONDITION (b.ts >= a.ts AND b.ts - a.ts <= INTERVAL '5' SECOND) ON b.auction = a.auction;

CREATE STREAM within_tolerance AS
SELECT b.price, a.price AS ask
FROM bids AS b LEFT ASOF JOIN asks AS a MATCH_CONDITION (b.ts > a.ts) TOLERANCE INTERVAL '5' SECOND
USING (auction);

CREATE STREAM next_one AS
SELECT b.price, a.price AS ask, b.ts
FROM bids AS b ASOF LEFT JOIN asks AS a MATCH_CONDITION (a.ts >= b.ts)
ON b.auction = a.auction AND a.ts < b.ts + INTERVAL '1' MINUTE AND b.price > 10;

CREATE STREAM next_one_whenever AS
SELECT b.price, a.price AS ask, b.ts
FROM bids AS b ASOF JOIN asks AS a ON b.auction = a.auction AND b.ts <= a.ts;

CREATE STREAM nearest_of_all AS
SELECT b.price, a.price AS ask
FROM bids AS b ASOF NEAREST JOIN asks AS a MATCH_CONDITION (b.ts = a.ts) TOLERANCE INTERVAL '1' MINUTE
ON b.auction = a.auction;

CREATE STREAM an_hour_before AS
SELECT b.price, a.price AS ask
FROM bids AS b ASOF JOIN asks AS a MATCH_CONDITION (b.ts - INTERVAL '1' HOUR >= a.ts)
ON b.auction = a.auction;
