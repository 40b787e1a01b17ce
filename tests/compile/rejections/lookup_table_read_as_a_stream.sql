CREATE LOOKUP TABLE customers (
    id BIGINT, name STRING, country STRING, PRIMARY KEY (id)
) WITH (connector = 'memory');

CREATE STREAM a AS SELECT name FROM customers;
CREATE STREAM b AS SELECT name FROM TUMBLE(customers, id, INTERVAL '1' MINUTE);
