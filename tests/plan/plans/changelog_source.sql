CREATE SOURCE orders (
    id BIGINT, state STRING, amount DECIMAL(10, 2), ts TIMESTAMP,
    PRIMARY KEY (id), WATERMARK FOR ts AS ts
) WITH (connector = 'memory', changelog = true);

CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM paid AS SELECT id, amount FROM orders WHERE state = 'paid';

CREATE STREAM by_state AS
SELECT state, count(*) AS n, sum(amount) AS amount FROM orders GROUP BY state EMIT ON UPDATE;

CREATE STREAM per_minute AS
SELECT window_end, sum(amount) AS amount FROM orders GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE);

CREATE STREAM with_bids AS
SELECT id, ts FROM orders UNION ALL SELECT auction, ts FROM bids;
