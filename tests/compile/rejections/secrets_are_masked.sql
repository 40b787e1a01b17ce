CREATE SOURCE s (k BIGINT) WITH (connector = 'kafka', brokers = 'b:9092', topc = 't', sasl_password = 'hunter2');
CREATE LOOKUP TABLE t (id BIGINT) WITH (connector = 'postgres', url = 'postgres://bob:hunter2@db/shop', password = 'hunter2');
CREATE STREAM u AS SELECT nope FROM VALUES (1) AS v (token) WHERE token = 'hunter2';
