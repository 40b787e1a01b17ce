CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM s AS SELECT price FROM bids;
CREATE SINK one FROM s WITH (connector = 'files', path = '/data/out');
CREATE SINK two FROM s WITH (connector = 'files', path = '/data/out');
