CREATE SOURCE a (id BIGINT, payload JSON) WITH (connector = 'memory');
CREATE SOURCE b (id UUID) WITH (connector = 'memory');
CREATE SOURCE c (id INT8) WITH (connector = 'memory');
CREATE SOURCE d (ids ARRAY<UBIGINT>) WITH (connector = 'memory');
CREATE SOURCE e (wait INTERVAL) WITH (connector = 'memory');
CREATE STREAM f AS SELECT CAST('{}' AS JSON) AS x FROM c;
CREATE STREAM g AS SELECT '1'::INT8 AS x FROM c;
