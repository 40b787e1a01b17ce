CREATE SOURCE bid (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'memory');
-- The highest bids so far; sorted by a column that is not selected; of sums that change; read by another stream.
CREATE STREAM highest AS SELECT auction, price FROM bid ORDER BY price DESC LIMIT 3 EMIT CHANGES;
CREATE STREAM by_time AS SELECT price FROM bid ORDER BY ts DESC LIMIT 2 EMIT CHANGES;
CREATE STREAM busiest AS SELECT auction, sum(price) AS total FROM bid GROUP BY auction ORDER BY total DESC, auction LIMIT 3 EMIT CHANGES;
CREATE STREAM of_highest AS SELECT count(DISTINCT auction) AS auctions FROM highest EMIT CHANGES;
CREATE STREAM second_page AS SELECT auction, price FROM bid ORDER BY price DESC LIMIT 3 OFFSET 2 EMIT CHANGES;
