CREATE SOURCE sales (
    city STRING NOT NULL, shop STRING, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts
) WITH (connector = 'memory');

-- NULL shops of the data are told apart from the NULLs of the sets by grouping_id.
CREATE STREAM rolled_up AS
SELECT city, shop, window_end, sum(price) AS total, grouping(shop) AS all_shops
FROM sales GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE), ROLLUP(city, shop)
HAVING grouping_id() < 3;

-- The columns of the window are in every set, so the watermark closes the groups.
CREATE STREAM named_sets AS
SELECT shop, window_end, count(*) AS n FROM TUMBLE(sales, ts, INTERVAL '1' MINUTE)
GROUP BY GROUPING SETS ((window_start, window_end, shop), (window_start, window_end));

-- A number of some of the columns, whatever else is in the sets.
CREATE STREAM numbered AS
SELECT grouping_id(shop, city) AS level, window_end, count(*) AS n
FROM TUMBLE(sales, ts, INTERVAL '1' MINUTE) GROUP BY CUBE(city, shop), window_start, window_end;

CREATE STREAM updated AS
SELECT city, shop, grouping_id() AS level, count(*) AS n FROM sales GROUP BY city, CUBE(shop)
EMIT ON UPDATE;

-- A set that is written twice gives its groups twice.
CREATE STREAM twice AS
SELECT city, count(*) AS n FROM sales GROUP BY GROUPING SETS (city, city) EMIT CHANGES;

CREATE STREAM with_rollup AS
SELECT upper(city) AS c, count(*) AS n FROM sales GROUP BY 1, shop WITH ROLLUP EMIT CHANGES;
