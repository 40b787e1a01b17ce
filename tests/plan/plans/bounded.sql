CREATE SOURCE history (k BIGINT, v BIGINT, ts TIMESTAMP)
WITH (connector = 'files', path = '/data/history', bounded = true);

CREATE STREAM sorted AS
SELECT k, sum(v) AS total FROM history GROUP BY k HAVING sum(v) > 0 ORDER BY total DESC, k LIMIT 10;

CREATE STREAM grand_total AS SELECT count(*) AS n, max(v) AS top FROM history;

CREATE STREAM unmatched AS
SELECT a.k, b.v FROM history AS a LEFT JOIN history AS b ON a.k = b.v;

CREATE STREAM distinct_keys AS
SELECT k FROM history EXCEPT (SELECT v FROM history EXCEPT SELECT k FROM history);

CREATE STREAM windows AS
SELECT window_end, count(*) AS n FROM history GROUP BY TUMBLE(ts, INTERVAL '1' HOUR);
