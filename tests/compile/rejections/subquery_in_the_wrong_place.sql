CREATE SOURCE bids (
    auction BIGINT NOT NULL, price BIGINT, channel STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts
) WITH (connector = 'memory');
CREATE SOURCE asks (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
    WITH (connector = 'memory');
CREATE STREAM in_an_aggregate WITH (state_ttl = '1 day') AS
SELECT channel, sum(price - (SELECT min(price) FROM asks)) AS t FROM bids GROUP BY channel EMIT CHANGES;
CREATE STREAM counted WITH (state_ttl = '1 day') AS
SELECT channel, count_if(auction IN (SELECT auction FROM asks)) AS t FROM bids GROUP BY channel EMIT CHANGES;
CREATE STREAM in_filter WITH (state_ttl = '1 day') AS
SELECT sum(price) FILTER (WHERE EXISTS (SELECT 1 FROM asks AS a WHERE a.auction = b.auction)) AS t FROM bids AS b EMIT CHANGES;
CREATE STREAM in_having WITH (state_ttl = '1 day') AS
SELECT channel FROM bids GROUP BY channel HAVING sum(price - (SELECT avg(price) FROM asks)) > 1 EMIT CHANGES;
CREATE STREAM in_keys WITH (state_ttl = '1 day') AS
SELECT count(*) AS t FROM bids GROUP BY (SELECT max(price) FROM asks) EMIT CHANGES;
CREATE STREAM in_sets WITH (state_ttl = '1 day') AS
SELECT count(*) AS t FROM bids GROUP BY ROLLUP(channel, (SELECT 2 * max(price) FROM asks)) EMIT CHANGES;
CREATE STREAM in_all WITH (state_ttl = '1 day') AS
SELECT (SELECT 3 * max(price) FROM asks) AS m, count(*) AS t FROM bids GROUP BY ALL EMIT CHANGES;
CREATE STREAM in_over WITH (state_ttl = '1 day') AS
SELECT sum(price) OVER (PARTITION BY auction ORDER BY ts, (SELECT max(ts) FROM asks)) AS t FROM bids EMIT CHANGES;
CREATE STREAM in_qualify WITH (state_ttl = '1 day') AS
SELECT price FROM bids
QUALIFY max(price - (SELECT 4 * max(price) FROM asks)) OVER (PARTITION BY auction ORDER BY ts) > 1 EMIT CHANGES;
CREATE STREAM in_a_view WITH (state_ttl = '1 day') AS
SELECT e FROM bids LATERAL VIEW explode(array((SELECT 5 * max(price) FROM asks))) v AS e EMIT CHANGES;
CREATE STREAM in_explode WITH (state_ttl = '1 day') AS
SELECT explode(array((SELECT 6 * max(price) FROM asks))) AS e FROM bids EMIT CHANGES;
