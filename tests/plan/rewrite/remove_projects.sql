CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, tags ARRAY<STRING>,
    ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM everything AS SELECT * FROM bids WHERE price > 1;

CREATE STREAM renamed AS
SELECT auction AS a, n AS m FROM (SELECT auction, count(*) AS n FROM bids GROUP BY auction) EMIT CHANGES;

CREATE STREAM turned AS SELECT n, auction FROM (SELECT auction, count(*) AS n FROM bids GROUP BY auction) EMIT CHANGES;
