CREATE SOURCE bids (auction BIGINT, bidder BIGINT, ts TIMESTAMP) WITH (connector = 'memory');
CREATE LOOKUP TABLE customers (id BIGINT, name STRING, PRIMARY KEY (id)) WITH (connector = 'memory');
CREATE STREAM n AS SELECT bidder, count(*) AS n FROM bids GROUP BY bidder EMIT CHANGES;
CREATE STREAM named AS SELECT c.name, n.n FROM n JOIN customers AS c ON n.bidder = c.id;
