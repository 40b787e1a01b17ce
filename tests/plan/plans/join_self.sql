CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM outbid AS
SELECT x.bidder AS loser, y.bidder AS winner, y.price
FROM bids AS x JOIN bids AS y
ON x.auction = y.auction AND y.price > x.price
AND y.ts BETWEEN x.ts AND x.ts + INTERVAL '1' MINUTE;
