CREATE SOURCE orders (id BIGINT, currency STRING, ts TIMESTAMP, paid TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'memory');
CREATE SOURCE rates (currency STRING, bank STRING, rate DOUBLE, ts TIMESTAMP,
    PRIMARY KEY (currency, bank), WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE STREAM s AS
SELECT o.id, r.rate FROM orders AS o RIGHT JOIN rates FOR SYSTEM_TIME AS OF o.paid AS r ON o.currency = r.currency;
CREATE STREAM later AS
SELECT o.id, r.rate FROM orders AS o
JOIN rates FOR SYSTEM_TIME AS OF o.ts + INTERVAL '1' SECOND AS r ON o.currency = r.currency AND r.bank = 'x';
