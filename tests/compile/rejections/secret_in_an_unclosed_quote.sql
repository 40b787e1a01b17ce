CREATE SOURCE s (k BIGINT) WITH (connector = 'kafka', sasl_password = 'hunter2);
