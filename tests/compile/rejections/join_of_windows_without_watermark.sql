CREATE SOURCE clicks (page STRING, at TIMESTAMP) WITH (connector = 'memory');
CREATE STREAM s AS
SELECT x.page FROM TUMBLE(clicks, at, INTERVAL '1' MINUTE) AS x
JOIN TUMBLE(clicks, at, INTERVAL '1' MINUTE) AS y ON x.window_end = y.window_end
EMIT CHANGES;
