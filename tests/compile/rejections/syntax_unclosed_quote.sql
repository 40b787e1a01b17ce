CREATE SOURCE s (k BIGINT) WITH (connector = 'memory);
