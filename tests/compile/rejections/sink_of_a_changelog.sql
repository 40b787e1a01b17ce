CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM counts AS SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT CHANGES;
CREATE SINK out FROM counts WITH (connector = 'files', path = '/data/out');
