CREATE SOURCE orders (
    id BIGINT, state STRING, amount DECIMAL(10, 2), ts TIMESTAMP,
    PRIMARY KEY (id), WATERMARK FOR ts AS ts
) WITH (connector = 'memory', changelog = true);

CREATE STREAM s AS SELECT sum(amount) OVER (PARTITION BY state ORDER BY ts) AS x FROM orders;
