CREATE LOOKUP TABLE t (id BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'memory');
