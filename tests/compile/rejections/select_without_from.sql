CREATE SOURCE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'memory');

CREATE STREAM alone AS SELECT 1 AS one;
CREATE STREAM with_a_column AS SELECT price WHERE price > 1;
CREATE STREAM one_more_row AS SELECT auction, price FROM bids UNION ALL SELECT 5, 100;
CREATE STREAM beside AS SELECT b.price, c.five FROM bids AS b CROSS JOIN (SELECT 5 AS five) AS c;
CREATE STREAM named AS WITH c AS (SELECT 5 AS five) SELECT five FROM c;
CREATE STREAM among_columns AS SELECT price, (SELECT 1) AS one FROM bids;
CREATE STREAM compared AS SELECT price FROM bids WHERE auction IN (SELECT 5);
CREATE STREAM existing WITH (state_ttl = '1 day') AS SELECT price FROM bids WHERE EXISTS (SELECT 7);
EXPLAIN SELECT 1 AS one;
