CREATE SOURCE a (k BIGINT) WITH (topic = 'bids');
CREATE SOURCE b (k BIGINT) WITH (connector = 'kafka');
CREATE SOURCE c (k BIGINT) WITH (connecter = 'memory');
