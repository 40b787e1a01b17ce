CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM cheap AS SELECT price FROM bids WHERE price < 10;
CREATE SINK out FROM cheap WITH (connector = 'console');
DROP SOURCE bids;
DROP STREAM cheap;
