-- A shop that is open: clicks and orders arrive every second, with the current time.
--   python examples/shop/rows.py --live                  in one terminal; Ctrl-C stops it
--   tidegate run examples/shop/live.sql --console        in another one

CREATE SOURCE clicks (
    id BIGINT NOT NULL, user_id BIGINT, page STRING, device STRUCT<os: STRING>, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'files', path = 'live/clicks', format = 'json', dead_letters = 'bad_clicks');

CREATE SOURCE orders (
    id BIGINT, user_id BIGINT, amount DECIMAL(10, 2), ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'files', path = 'live/orders', format = 'csv', header = true);

CREATE LOOKUP TABLE customers (id BIGINT, name STRING, country STRING, PRIMARY KEY (id))
WITH (connector = 'files', path = 'live/customers', format = 'csv', header = true);

-- 1. Views and visitors of each page, every ten seconds. Late clicks are kept.
CREATE STREAM page_views AS
SELECT page, window_start, count(*) AS views, count(DISTINCT user_id) AS visitors
FROM clicks GROUP BY page, TUMBLE(ts, INTERVAL '10' SECOND)
EMIT ON WINDOW CLOSE LATE DATA TO late_clicks;

-- 2. Orders within a minute after the user was at the checkout.
CREATE STREAM conversions AS
SELECT o.id AS order_id, o.user_id, o.amount, c.ts AS clicked, o.ts AS ordered
FROM clicks AS c JOIN orders AS o
ON c.user_id = o.user_id AND o.ts BETWEEN c.ts AND c.ts + INTERVAL '1' MINUTE
WHERE c.page = '/checkout';

-- 3. Orders with the customer's name and country.
CREATE STREAM named_orders AS
SELECT o.id, o.amount, o.ts, c.name, c.country
FROM orders AS o LEFT JOIN customers AS c ON o.user_id = c.id;

-- 4. Revenue by country, which can be queried while the pipeline runs:
--    tidegate query examples/shop/.tidegate/live "SELECT * FROM revenue"
CREATE MATERIALIZED VIEW revenue AS
SELECT country, count(*) AS orders, sum(amount) AS revenue FROM named_orders GROUP BY country EMIT ON UPDATE;

CREATE SINK views_out FROM page_views WITH (connector = 'files', path = 'live/out/views', format = 'parquet', compact_after = 50);
CREATE SINK conversions_out FROM conversions WITH (connector = 'files', path = 'live/out/conversions', format = 'parquet', compact_after = 50);
CREATE SINK late_out FROM late_clicks WITH (connector = 'files', path = 'live/out/late_clicks', format = 'json', compact_after = 50);
CREATE SINK bad_out FROM bad_clicks WITH (connector = 'files', path = 'live/out/bad_clicks', format = 'json', compact_after = 50);
