CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE a (k BIGINT) WITH (connector = 'console');
CREATE LOOKUP TABLE b (id BIGINT) WITH (connector = 'kafka');
CREATE STREAM s AS SELECT price FROM bids;
CREATE SINK c FROM s WITH (connector = 'generator');
