CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM s AS
SELECT window_start, price FROM CUMULATE(bids, ts, INTERVAL '1' MINUTE, INTERVAL '1' HOUR)
ORDER BY price;
