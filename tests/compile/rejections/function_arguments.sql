CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE FUNCTION fee(x DECIMAL(10, 2), rate DOUBLE) RETURNS DECIMAL(10, 2) RETURN x * rate;
CREATE FUNCTION twice(x DOUBLE) RETURN x + x;
CREATE FUNCTION shifted(xs ARRAY<DOUBLE>, by DOUBLE) RETURN transform(xs, x -> x + by);
CREATE STREAM too_few AS SELECT fee(price) AS f FROM bids;
CREATE STREAM too_many AS SELECT twice(price, 1, 2) AS f FROM bids;
CREATE STREAM of_all AS SELECT twice(DISTINCT price) AS f FROM bids;
CREATE STREAM drawn_twice AS SELECT twice(rand()) AS f FROM bids;
CREATE STREAM drawn_often AS SELECT shifted(array(1, 2), rand()) AS f FROM bids;
CREATE STREAM in_a_window AS SELECT twice(price) OVER (PARTITION BY auction ORDER BY ts) AS f FROM bids;
CREATE STREAM filtered AS SELECT twice(price) FILTER (WHERE price > 1) AS f FROM bids;
CREATE STREAM misspelt AS SELECT twic(price) AS f FROM bids;
