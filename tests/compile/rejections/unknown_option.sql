CREATE SOURCE s (k BIGINT) WITH (connector = 'kafka', brokers = 'localhost:9092', topc = 'bids');
CREATE STREAM t WITH (state_tll = '1 day') AS SELECT k FROM s;
