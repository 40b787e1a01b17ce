CREATE SOURCE bids (auction BIGINT NOT NULL, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
    WITH (connector = 'memory');
CREATE SOURCE asks (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
    WITH (connector = 'memory');
CREATE STREAM maybe_null_inside WITH (state_ttl = '1 day') AS
SELECT price FROM bids WHERE (auction, auction) NOT IN (SELECT auction, auction FROM asks);
CREATE STREAM maybe_null_outside WITH (state_ttl = '1 day') AS
SELECT auction FROM asks WHERE (1, price + 1) NOT IN (SELECT auction, auction FROM bids);
CREATE STREAM below_groups WITH (state_ttl = '1 day') AS
SELECT price FROM bids AS b
WHERE price IN (SELECT max(price) FROM asks AS a WHERE a.auction = b.auction GROUP BY a.ts)
EMIT CHANGES;
CREATE STREAM always_there WITH (state_ttl = '1 day') AS
SELECT price FROM bids WHERE EXISTS (SELECT count(*) FROM asks) EMIT CHANGES;
CREATE STREAM inside_or WITH (state_ttl = '1 day') AS
SELECT price FROM bids WHERE price = 1 OR auction IN (SELECT auction FROM asks);
CREATE STREAM too_few WITH (state_ttl = '1 day') AS
SELECT price FROM bids WHERE (auction, price) IN (SELECT auction FROM asks);
