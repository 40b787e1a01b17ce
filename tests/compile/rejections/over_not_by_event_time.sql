CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM a AS SELECT sum(price) OVER (PARTITION BY auction) AS x FROM bids;
CREATE STREAM b AS SELECT sum(price) OVER (ORDER BY ts DESC) AS x FROM bids;
CREATE STREAM c AS SELECT price, rank() OVER (PARTITION BY auction ORDER BY price) AS x FROM bids;
