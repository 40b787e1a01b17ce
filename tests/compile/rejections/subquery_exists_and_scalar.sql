CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH (connector = 'memory');

CREATE STREAM a AS
SELECT price FROM bids AS b WHERE NOT EXISTS (SELECT 1 FROM asks AS a WHERE a.auction = b.auction);
CREATE STREAM b AS SELECT price, (SELECT max(price) FROM asks) AS top FROM bids;
CREATE STREAM c AS SELECT price, (SELECT price FROM asks LIMIT 1) AS top FROM bids;
CREATE STREAM d AS
SELECT price FROM bids AS b WHERE price > (SELECT max(price) FROM asks AS a WHERE a.auction = b.auction);
