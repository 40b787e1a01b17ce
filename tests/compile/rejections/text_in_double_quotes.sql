CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM a AS SELECT "price" AS p, auction FROM bids;
CREATE STREAM b AS SELECT auction FROM bids WHERE "price" > 3;
CREATE STREAM c AS SELECT auction, count(*) AS n FROM bids GROUP BY auction HAVING "n" > 3 EMIT CHANGES;
CREATE STREAM d AS SELECT count(*) AS n FROM bids GROUP BY TUMBLE("ts", INTERVAL '1' MINUTE);
CREATE SOURCE e (ms STRING, ts AS to_timestamp("ms")) WITH (connector = 'memory');
