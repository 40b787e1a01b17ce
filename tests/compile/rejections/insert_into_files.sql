CREATE SOURCE history (k BIGINT, v BIGINT, ts TIMESTAMP)
WITH (connector = 'files', path = '/data/history', bounded = true);

INSERT INTO history VALUES (1, 2, TIMESTAMP '2020-01-01');
