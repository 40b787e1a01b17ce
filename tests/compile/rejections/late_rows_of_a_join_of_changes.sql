CREATE SOURCE orders (id BIGINT, state STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'memory', changelog = true);
CREATE SOURCE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'memory');

CREATE STREAM s AS
SELECT b.price, o.state FROM bids AS b JOIN orders AS o
ON b.auction = o.id AND o.ts BETWEEN b.ts AND b.ts + INTERVAL '1' MINUTE
EMIT CHANGES LATE DATA TO late_rows;
