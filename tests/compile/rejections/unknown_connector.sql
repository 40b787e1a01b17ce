CREATE SOURCE s (k BIGINT) WITH (connector = 'kafak', topic = 'bids');
