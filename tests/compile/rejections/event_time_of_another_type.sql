CREATE SOURCE a (id BIGINT, ts STRING, WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE SOURCE b (id BIGINT, day DATE, WATERMARK FOR day AS day) WITH (connector = 'memory');
CREATE SOURCE c (id BIGINT, ms BIGINT, WATERMARK FOR ms AS ms) WITH (connector = 'memory');
CREATE SOURCE d (ts DOUBLE, event_time INT, WATERMARK FOR event_time AS event_time) WITH (connector = 'memory');
