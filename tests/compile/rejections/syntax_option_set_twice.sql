CREATE SOURCE s (k BIGINT) WITH (connector = 'memory', Connector = 'files');
