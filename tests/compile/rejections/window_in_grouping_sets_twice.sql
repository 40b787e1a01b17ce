CREATE SOURCE sales (city STRING, shop STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE STREAM sets AS
SELECT city, shop, window_start, count(*) AS n FROM sales
GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE), GROUPING SETS ((city, window_start), (shop, window_start));
