CREATE SOURCE bids (auction BIGINT, price BIGINT, tags ARRAY<BIGINT>, ms BIGINT, ts AS at_second(ms),
    WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE FUNCTION at_second(ms BIGINT) RETURNS TIMESTAMP RETURN date_trunc('SECOND', timestamp_millis(ms));
CREATE FUNCTION fee(x DECIMAL(10, 2), rate DOUBLE) RETURNS DECIMAL(10, 2) AS x * rate;
CREATE FUNCTION net(x DECIMAL(10, 2)) RETURNS DECIMAL(10, 2) RETURN x - fee(x, 0.1);
CREATE FUNCTION plus(xs ARRAY<BIGINT>, y BIGINT) RETURN transform(xs, x -> x + y);

CREATE STREAM everywhere AS
SELECT net(max(price)) AS top, window_end, fee(auction, 2) AS half
FROM bids WHERE fee(price, 0.5) > 3
GROUP BY fee(auction, 2), TUMBLE(ts, INTERVAL '1' MINUTE)
HAVING net(sum(price)) > 10;

CREATE STREAM names_are_kept_apart AS SELECT transform(array(tags), x -> plus(x, price)) AS t FROM bids;
