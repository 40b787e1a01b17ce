CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH (connector = 'memory');

CREATE SOURCE rates (
    currency STRING, rate DOUBLE, ts TIMESTAMP,
    PRIMARY KEY (currency), WATERMARK FOR ts AS ts
) WITH (connector = 'memory');

CREATE STREAM a AS SELECT b.price FROM bids AS b ASOF JOIN asks AS a ON b.auction = a.auction;
CREATE STREAM b AS SELECT b.price FROM bids AS b ASOF JOIN asks AS a MATCH_CONDITION (b.price >= a.price) ON b.auction = a.auction;
CREATE STREAM c AS SELECT b.price FROM bids AS b ASOF JOIN asks AS a MATCH_CONDITION (b.ts >= b.bidder) ON b.auction = a.auction;
CREATE STREAM d AS SELECT b.price FROM bids AS b ASOF JOIN rates AS r MATCH_CONDITION (b.ts >= r.ts) ON b.channel = r.currency;
