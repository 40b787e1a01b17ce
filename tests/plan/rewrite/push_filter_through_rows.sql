CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, tags ARRAY<STRING>,
    ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');
CREATE SOURCE rates (
    currency STRING, rate BIGINT, note STRING, ts TIMESTAMP, PRIMARY KEY (currency),
    WATERMARK FOR ts AS ts
) WITH (connector = 'memory');

CREATE STREAM seen AS
SELECT * FROM (SELECT DISTINCT auction, ts FROM bids) WHERE auction > 5;

CREATE STREAM dollars AS
SELECT note, rate FROM rates WHERE currency = 'USD' AND rate > 1 EMIT CHANGES;
