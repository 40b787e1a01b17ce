CREATE SOURCE clicks (page STRING, at TIMESTAMP) WITH (connector = 'memory');
CREATE STREAM s AS SELECT page, count(*) AS n FROM clicks GROUP BY page, TUMBLE(at, INTERVAL '1' MINUTE);
