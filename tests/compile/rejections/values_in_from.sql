CREATE SOURCE bids (auction BIGINT, price BIGINT) WITH (connector = 'memory');
CREATE STREAM a AS SELECT b.price, v.name FROM bids AS b JOIN (VALUES (1, 'one')) AS v (n, name) ON b.auction = v.n;
CREATE STREAM b AS SELECT auction FROM bids UNION ALL SELECT n FROM VALUES (1), (2) AS v (n);
