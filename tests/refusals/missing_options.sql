CREATE SOURCE a (k BIGINT) WITH (topic = 'bids');
CREATE SOURCE b (k BIGINT) WITH (connector = 'kafka');
