CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, tags ARRAY<STRING>,
    ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM renamed AS
SELECT * FROM (SELECT auction AS a, price * 2 AS twice FROM bids) WHERE a > 5 AND twice > 10;

CREATE STREAM random AS
SELECT * FROM (SELECT auction, rand() AS r FROM bids) WHERE r < 0.5 AND auction > 5;

CREATE STREAM generated AS
SELECT * FROM (SELECT auction, explode(tags) AS tag FROM bids) WHERE auction > 5;

-- The parameter of the lambda would hide the column of the source.
CREATE STREAM captured AS
SELECT y FROM (SELECT length(channel) AS y, tags FROM bids) WHERE exists(tags, channel -> length(channel) > y);

-- The order of conditions stays, so that the division keeps its guard.
CREATE STREAM ordered AS
SELECT * FROM (SELECT auction AS a, price AS p FROM bids) WHERE p <> 0 AND 10 / p > 1 AND rand() < 1 AND 10 / a > 1 AND a > 1;
