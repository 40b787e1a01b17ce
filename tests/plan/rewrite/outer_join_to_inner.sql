CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, tags ARRAY<STRING>,
    ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');
CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, weight DOUBLE, ts TIMESTAMP, WATERMARK FOR ts AS ts
) WITH (connector = 'memory');

CREATE STREAM matched AS
SELECT b.auction, a.seller FROM bids AS b
LEFT JOIN asks AS a ON b.auction = a.auction AND a.ts BETWEEN b.ts - INTERVAL '1' MINUTE AND b.ts
WHERE a.seller > 5;

CREATE STREAM half_matched AS
SELECT b.auction, a.seller FROM bids AS b
FULL JOIN asks AS a ON b.auction = a.auction AND a.ts BETWEEN b.ts - INTERVAL '1' MINUTE AND b.ts
WHERE a.seller IS NOT NULL;

CREATE STREAM unmatched AS
SELECT b.auction, a.seller FROM bids AS b
LEFT JOIN asks AS a ON b.auction = a.auction AND a.ts BETWEEN b.ts - INTERVAL '1' MINUTE AND b.ts
WHERE coalesce(a.seller, 7) > 5;

-- An outer join without bounds gives changes, an inner one rows: what was promised stays.
CREATE STREAM promised WITH (state_ttl = '1 day') AS
SELECT b.auction, a.seller FROM bids AS b LEFT JOIN asks AS a ON b.auction = a.auction
WHERE a.seller > 5 EMIT CHANGES;
