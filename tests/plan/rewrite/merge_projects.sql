CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, tags ARRAY<STRING>,
    ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM renamed AS
SELECT a + 1 AS next, p FROM (SELECT auction AS a, price * 2 AS p FROM bids);

-- It would be computed twice.
CREATE STREAM twice AS
SELECT p, p + 1 AS more FROM (SELECT price * 2 AS p FROM bids);

CREATE STREAM random AS SELECT r FROM (SELECT rand() AS r FROM bids);

CREATE STREAM generated AS SELECT tag FROM (SELECT explode(tags) AS tag FROM bids);
