-- A shop with eight streams over clicks, orders and customers. Write some input, then run the streams:
--   python examples/shop/rows.py            (run it again for more input; --every 5 writes a file every 5 s)
--   tidegate run examples/shop/shop.sql --console
-- The pipeline reads new files in in/ until you stop it. With --until-end it closes all windows and exits.

CREATE SOURCE raw_clicks (
    id BIGINT NOT NULL, user_id BIGINT, page STRING, device STRUCT<os: STRING>, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' MINUTE
) WITH (connector = 'files', path = 'in/clicks', format = 'json', dead_letters = 'bad_clicks');

CREATE SOURCE orders (
    id BIGINT, user_id BIGINT, amount DECIMAL(10, 2), ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' MINUTE
) WITH (connector = 'files', path = 'in/orders', format = 'csv', header = true);

CREATE LOOKUP TABLE customers (id BIGINT, name STRING, country STRING, PRIMARY KEY (id))
WITH (connector = 'files', path = 'in/customers', format = 'csv', header = true);

-- 1. Clicks without duplicates. Late clicks are kept.
CREATE STREAM clicks AS
SELECT DISTINCT id, user_id, page, device.os AS os, ts FROM raw_clicks
LATE DATA TO late_clicks;

-- 2. Views and visitors of each page per minute.
CREATE STREAM views AS
SELECT window_start, window_time, page, count(*) AS views, count(DISTINCT user_id) AS visitors
FROM clicks GROUP BY page, TUMBLE(ts, INTERVAL '1' MINUTE);

-- 3. Visits: clicks of a user that are at most five minutes apart.
CREATE STREAM visits AS
SELECT user_id, window_start, window_end, count(*) AS clicks, last(page) AS last_page
FROM clicks GROUP BY user_id, SESSION(ts, INTERVAL '5' MINUTE);

-- 4. The three most viewed pages of every five minutes.
CREATE STREAM top_pages AS
SELECT window_start, window_end, page, sum(views) AS views
FROM views GROUP BY page, TUMBLE(window_time, INTERVAL '5' MINUTE)
QUALIFY row_number() OVER (PARTITION BY window_start, window_end ORDER BY sum(views) DESC, page) <= 3;

-- 5. Orders within 15 minutes after the user was at the checkout.
CREATE STREAM funnel AS
SELECT o.id AS order_id, c.id AS click_id, o.user_id, o.ts AS ordered, c.ts AS clicked
FROM clicks AS c JOIN orders AS o
ON c.user_id = o.user_id AND o.ts BETWEEN c.ts AND c.ts + INTERVAL '15' MINUTE
WHERE c.page = '/checkout';

-- 6. Orders with the customer's name and country.
CREATE STREAM named_orders AS
SELECT o.id, o.amount, o.ts, c.name, c.country
FROM orders AS o LEFT JOIN customers AS c ON o.user_id = c.id;

-- 7. Orders of more than three times the user's previous order.
CREATE STREAM jumps AS
SELECT id, user_id, amount, before FROM (
    SELECT id, user_id, amount, lag(amount) OVER (PARTITION BY user_id ORDER BY ts) AS before FROM orders
) WHERE amount > 3 * before;

-- 8. A view that can be queried while the pipeline runs: tidegate query examples/shop/.tidegate/shop "SELECT * FROM by_os"
CREATE MATERIALIZED VIEW by_os AS
SELECT os, count(*) AS clicks FROM clicks GROUP BY os EMIT ON UPDATE;

CREATE SINK clicks_out FROM clicks WITH (connector = 'files', path = 'out/clicks', format = 'parquet', compact_after = 50);
CREATE SINK views_out FROM views WITH (connector = 'files', path = 'out/views', format = 'parquet', compact_after = 50);
CREATE SINK visits_out FROM visits WITH (connector = 'files', path = 'out/visits', format = 'parquet', compact_after = 50);
CREATE SINK top_out FROM top_pages WITH (connector = 'files', path = 'out/top_pages', format = 'parquet', compact_after = 50);
CREATE SINK funnel_out FROM funnel WITH (connector = 'files', path = 'out/funnel', format = 'parquet', compact_after = 50);
CREATE SINK named_out FROM named_orders WITH (connector = 'files', path = 'out/named_orders', format = 'json');
CREATE SINK jumps_out FROM jumps WITH (connector = 'files', path = 'out/jumps', format = 'json');
CREATE SINK bad_out FROM bad_clicks WITH (connector = 'files', path = 'out/bad_clicks', format = 'json');
CREATE SINK late_out FROM late_clicks WITH (connector = 'files', path = 'out/late_clicks', format = 'json');
