CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM best AS
SELECT auction, bidder, price
FROM bids
QUALIFY row_number() OVER (PARTITION BY auction ORDER BY price DESC, ts) <= 3
EMIT CHANGES;

CREATE STREAM second AS
SELECT auction, bidder, price, rank() OVER (PARTITION BY auction ORDER BY price DESC) AS place
FROM bids
QUALIFY place = 2;

CREATE STREAM last_bid AS
SELECT auction, bidder, price, ts
FROM bids
QUALIFY row_number() OVER (PARTITION BY auction ORDER BY ts DESC) = 1
EMIT ON UPDATE;
