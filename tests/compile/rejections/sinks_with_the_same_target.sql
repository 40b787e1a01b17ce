CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');
CREATE SOURCE own (price BIGINT) WITH (connector = 'files', path = 'in/');

CREATE STREAM s AS SELECT price FROM bids;
CREATE STREAM t AS SELECT price FROM own;
CREATE SINK one FROM s WITH (connector = 'files', path = '/data/out');
CREATE SINK two FROM s WITH (connector = 'files', path = '/data/out');
CREATE SINK three FROM s WITH (connector = 'files', path = 'file:///data/./out/');
CREATE SINK four FROM s WITH (connector = 'files', path = 'out');
CREATE SINK five FROM s WITH (connector = 'files', path = './out/');
CREATE SINK six FROM s WITH (connector = 'files', path = 's3://bucket/out');
CREATE SINK seven FROM s WITH (connector = 'files', path = 's3://bucket/out/');
CREATE SINK eight FROM t WITH (connector = 'files', path = './in');
