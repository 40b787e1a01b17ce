CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM by_time AS SELECT DISTINCT auction, ts FROM bids;

CREATE STREAM by_window AS
SELECT DISTINCT auction, window_end FROM TUMBLE(bids, ts, INTERVAL '1' MINUTE);

CREATE STREAM by_ttl WITH (state_ttl = '1 day') AS SELECT DISTINCT auction FROM bids;
