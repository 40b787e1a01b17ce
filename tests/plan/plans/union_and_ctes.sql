CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH (connector = 'memory');

CREATE STREAM both AS
WITH cheap AS (SELECT auction, price, ts FROM bids WHERE price < 10),
     prices (auction, price, ts) AS (
         SELECT * FROM cheap UNION ALL SELECT auction, price, ts FROM asks
     )
SELECT * FROM prices UNION ALL SELECT auction, price * 2, ts FROM cheap;

CREATE STREAM per_minute AS
SELECT window_end, count(*) AS n FROM TUMBLE(both, ts, INTERVAL '1' MINUTE) GROUP BY window_end;

CREATE STREAM once AS
SELECT auction, ts FROM bids UNION SELECT auction, ts FROM asks;
