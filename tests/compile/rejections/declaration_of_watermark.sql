CREATE SOURCE a (k BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts + INTERVAL '5' SECOND) WITH (connector = 'memory');
CREATE SOURCE b (k BIGINT, ts BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE SOURCE c (k BIGINT, ts TIMESTAMP, WATERMARK FOR tss AS tss) WITH (connector = 'memory');
CREATE SOURCE d (k BIGINT, ts AS now(), WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE SOURCE e (k BIGINT) WITH (connector = 'memory', max_future = '1 hour');
