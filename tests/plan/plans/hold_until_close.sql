CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE LOOKUP TABLE customers (
    id BIGINT, name STRING, country STRING, PRIMARY KEY (id)
) WITH (connector = 'memory');

CREATE STREAM at_close AS
SELECT price * 2 AS twice
FROM TUMBLE(bids, ts, INTERVAL '1' MINUTE)
WHERE price > 10
EMIT ON WINDOW CLOSE;

CREATE STREAM named_at_close AS
SELECT c.name, b.price
FROM HOP(bids, ts, INTERVAL '30' SECOND, INTERVAL '1' MINUTE) AS b
JOIN customers AS c ON b.bidder = c.id
EMIT ON WINDOW CLOSE;
