CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM a AS SELECT price FROM bids WHERE channel = NULL;
CREATE STREAM b AS SELECT CASE WHEN NULL <> channel THEN 1 END AS known FROM bids;
