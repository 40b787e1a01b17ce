CREATE SOURCE readings (sensor INT, value DOUBLE, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'files', path = '/data/in', format = 'json', dead_letters = 'bad_readings');

CREATE STREAM broken AS SELECT reason, count(*) AS n FROM bad_readings GROUP BY reason EMIT CHANGES;
