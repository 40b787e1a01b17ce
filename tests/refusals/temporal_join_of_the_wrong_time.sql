CREATE SOURCE orders (id BIGINT, currency STRING, ts TIMESTAMP, paid TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'memory');
CREATE SOURCE rates (currency STRING, bank STRING, rate DOUBLE, ts TIMESTAMP,
    PRIMARY KEY (currency, bank), WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE STREAM s AS
SELECT o.id, r.rate FROM orders AS o RIGHT JOIN rates FOR SYSTEM_TIME AS OF o.paid AS r ON o.currency = r.currency;
