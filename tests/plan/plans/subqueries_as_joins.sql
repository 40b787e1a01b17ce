CREATE SOURCE bids (auction BIGINT NOT NULL, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
    WITH (connector = 'memory');
CREATE SOURCE asks (auction BIGINT NOT NULL, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
    WITH (connector = 'memory');

CREATE STREAM within_a_minute AS
SELECT b.price, ts FROM bids AS b
WHERE b.price > 3 AND b.auction IN (
    SELECT a.auction FROM asks AS a
    WHERE a.price < 5 AND a.ts BETWEEN b.ts - INTERVAL '1' MINUTE AND b.ts);

CREATE STREAM without_an_ask AS
SELECT price FROM bids AS b
WHERE NOT EXISTS (SELECT * FROM asks AS a WHERE a.auction = b.auction AND a.ts = b.ts LIMIT 1);

CREATE STREAM never_asked AS
SELECT price FROM bids AS b
WHERE auction NOT IN (SELECT auction FROM asks AS a WHERE a.ts <= b.ts AND a.ts > b.ts - INTERVAL '1' HOUR);

-- A NULL price is left out on both sides, so NOT IN and an anti join mean the same.
CREATE STREAM other_prices AS
SELECT price FROM bids AS b
WHERE price IS NOT NULL
  AND price NOT IN (SELECT price FROM asks AS a WHERE price IS NOT NULL AND a.ts = b.ts);

CREATE STREAM best_of_the_window AS
SELECT auction, window_end, price FROM TUMBLE(bids, ts, INTERVAL '1' MINUTE) AS b
WHERE (price, window_end) IN (
    SELECT max(price), window_end FROM asks GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE));

CREATE STREAM of_busy_auctions WITH (state_ttl = '1 day') AS
SELECT price FROM bids
WHERE auction IN (SELECT DISTINCT auction FROM asks GROUP BY auction HAVING count(*) >= 20)
EMIT CHANGES;

CREATE STREAM groups_in_a_list AS
SELECT auction, count(*) AS n FROM bids GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)
HAVING window_end IN (SELECT window_end FROM asks GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE));
