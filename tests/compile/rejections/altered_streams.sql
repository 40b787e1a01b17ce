CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM prices AS SELECT price, channel FROM bids;
ALTER STREAM prices SET (state_tll = '1 day');
ALTER STREAM prices SET (state_ttl = 'soon');
ALTER STREAM price SET (state_ttl = '1 day');
ALTER STREAM bids SET (state_ttl = '1 day');
ALTER STREAM prices SET ();
ALTER STREAM prices (state_ttl = '1 day');
ALTER SOURCE bids SET (dead_letters = 'x');
