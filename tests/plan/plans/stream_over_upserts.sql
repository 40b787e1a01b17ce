CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM counts AS
SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT ON UPDATE;

CREATE STREAM busy AS SELECT auction, n FROM counts WHERE n > 10;

CREATE STREAM histogram AS SELECT n, count(*) AS auctions FROM counts GROUP BY n EMIT CHANGES;

CREATE STREAM twice WITH (state_ttl = '1 day') AS
SELECT x.auction, x.n, y.n AS again
FROM counts AS x JOIN counts AS y ON x.auction = y.auction
EMIT CHANGES;
