CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

LIST STREAMS;
PRINT bids;
DELETE FROM bids WHERE price = 0;
UPDATE bids SET price = 0;
TRUNCATE TABLE bids;
USE other;
DROP TABLE bids;
DROP VIEW v;
SHOW JOBS;
SHOW COLUMNS FROM bids;
CREATE OR REPLACE SOURCE bids (id BIGINT) WITH (connector = 'memory');
