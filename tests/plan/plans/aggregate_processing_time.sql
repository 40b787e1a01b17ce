CREATE SOURCE clicks (id BIGINT, page STRING) WITH (connector = 'memory');

CREATE STREAM pages AS
SELECT page, window_end, count(*) AS n
FROM clicks
GROUP BY page, TUMBLE(PROCTIME(), INTERVAL '10' SECOND);
