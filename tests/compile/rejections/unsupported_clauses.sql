CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM a AS SELECT price FROM bids TABLESAMPLE (10 PERCENT);
CREATE STREAM b AS SELECT price FROM bids SORT BY price;
CREATE STREAM c AS SELECT auction, count(*) AS n FROM bids GROUP BY ALL auction EMIT CHANGES;
CREATE STREAM d AS SELECT TRANSFORM (price) USING 'cat' AS (x) FROM bids;
CREATE STREAM e AS SELECT sum(price) OVER w AS x FROM bids;
CREATE STREAM f AS SELECT DISTINCT ON (auction) auction, ts FROM bids;
CREATE STREAM g AS SELECT * FROM range(10);
CREATE STREAM h AS SELECT price FROM bids WHERE price > :limit;
CREATE STREAM i AS SELECT upper(explode(split(channel, ','))) AS part FROM bids;
