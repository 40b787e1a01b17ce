CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM a AS SELECT sum(price) OVER w AS x FROM bids;
CREATE STREAM b AS SELECT sum(price) OVER v AS x FROM bids WINDOW w AS (PARTITION BY auction ORDER BY ts);
CREATE STREAM c AS SELECT sum(price) OVER w AS x FROM bids WINDOW w AS (v ORDER BY ts), v AS (w);
