CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH (connector = 'memory');

CREATE STREAM a AS SELECT price FROM bids WHERE max(price) > 3;
CREATE STREAM b AS SELECT price FROM bids HAVING price > 3;
CREATE STREAM c AS SELECT sum(max(price)) AS x FROM bids EMIT CHANGES;
CREATE STREAM d AS SELECT count(*) AS n FROM bids GROUP BY max(price) EMIT CHANGES;
CREATE STREAM e AS SELECT b.price FROM bids AS b JOIN asks AS a ON max(b.price) = a.price AND a.ts = b.ts;
CREATE SOURCE f (k BIGINT, top AS max(k)) WITH (connector = 'memory');
