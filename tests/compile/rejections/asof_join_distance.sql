CREATE SOURCE bids (auction BIGINT, price BIGINT, name STRING, ts TIMESTAMP,
                    WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE SOURCE asks (auction BIGINT, price BIGINT, name STRING, ts TIMESTAMP,
                    WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE STREAM a AS SELECT b.price FROM bids AS b
ASOF NEAREST JOIN asks AS a MATCH_CONDITION (b.ts >= a.ts) ON b.auction = a.auction;
CREATE STREAM b AS SELECT b.price FROM bids AS b
ASOF JOIN asks AS a MATCH_CONDITION (b.ts >= a.ts) TOLERANCE b.price ON b.auction = a.auction;
CREATE STREAM c AS SELECT b.price FROM bids AS b
JOIN asks AS a MATCH_CONDITION (b.ts >= a.ts) ON b.auction = a.auction;
CREATE STREAM d AS SELECT b.price FROM bids AS b
ASOF CROSS JOIN asks AS a MATCH_CONDITION (b.ts >= a.ts);
CREATE STREAM e AS SELECT b.price FROM bids AS b
ASOF JOIN asks AS a MATCH_CONDITION (b.ts = a.ts) ON b.auction = a.auction;
