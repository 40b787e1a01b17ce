CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

SELECT price FROM bids;
