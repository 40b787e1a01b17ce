CREATE SOURCE a (id BIGINT user_id BIGINT) WITH (connector = 'memory');
CREATE SOURCE b (id BIGINT NOT NULL name STRING, price DOUBLE) WITH (connector = 'memory');
CREATE SOURCE c (ms BIGINT, ts AS timestamp_millis(ms) WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE SOURCE d (id BIGINT PRIMARY KEY (id)) WITH (connector = 'memory');
CREATE SOURCE e (id BIGINT, double_id AS id * 2 name STRING) WITH (connector = 'memory');
