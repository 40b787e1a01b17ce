CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE rates (currency STRING, rate DOUBLE) WITH (connector = 'memory');
CREATE STREAM s AS SELECT b.price, r.rate FROM bids AS b JOIN rates FOR SYSTEM_TIME AS OF b.ts AS r ON true;
