CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH (connector = 'memory');

CREATE STREAM a AS SELECT auction, price FROM bids UNION ALL SELECT auction FROM asks;
CREATE STREAM b AS SELECT price, price * 2 AS Price FROM bids;
CREATE STREAM c AS SELECT x FROM (SELECT auction, price FROM bids) AS t (x);
