-- Orders come from a topic; two tables of PostgreSQL hold what becomes of them, exactly once.
CREATE SOURCE orders (
    id BIGINT, customer BIGINT, amount DECIMAL(10,2), ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'kafka', topic = 'orders', brokers = '${KAFKA_BROKERS}', idle_timeout = '10 s');

CREATE LOOKUP TABLE customers (id BIGINT, country STRING, PRIMARY KEY (id))
WITH (connector = 'postgres', host = '127.0.0.1', port = '${SHOP_PORT}', database = 'postgres', user = 'postgres',
      password = '${SHOP_PASSWORD}', table = 'customers');

-- A row for each minute, once it is over: appended.
CREATE STREAM per_minute AS
SELECT window_start AS minute, count(*) AS orders, sum(amount) AS amount
FROM orders GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE);

-- A row per country, always up to date: replaced by key.
CREATE STREAM by_country AS
SELECT c.country, count(*) AS orders, sum(o.amount) AS amount
FROM orders AS o JOIN customers AS c ON o.customer = c.id
GROUP BY c.country EMIT ON UPDATE;

CREATE SINK minutes FROM per_minute
WITH (connector = 'postgres', host = '127.0.0.1', port = '${SHOP_PORT}', database = 'postgres', user = 'postgres',
      password = '${SHOP_PASSWORD}', table = 'orders_per_minute', create_table = true);

CREATE SINK countries FROM by_country
WITH (connector = 'postgres', host = '127.0.0.1', port = '${SHOP_PORT}', database = 'postgres', user = 'postgres',
      password = '${SHOP_PASSWORD}', table = 'orders_by_country', create_table = true);
