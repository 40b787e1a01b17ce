CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM a AS SELECT price FROM bids WHERE row_number() OVER (ORDER BY ts) = 1;
CREATE STREAM b AS SELECT price FROM bids QUALIFY price > 3;
CREATE STREAM c AS SELECT max(lag(price) OVER (ORDER BY ts)) AS x FROM bids EMIT CHANGES;
CREATE STREAM d AS SELECT sum(lag(price) OVER (ORDER BY ts)) OVER (ORDER BY ts) AS x FROM bids;
