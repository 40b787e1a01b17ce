CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE LOOKUP TABLE customers (
    id BIGINT, name STRING, country STRING, PRIMARY KEY (id)
) WITH (connector = 'memory');

CREATE SINK a FROM bids WITH (connector = 'console');
CREATE SINK b FROM customers WITH (connector = 'console');
