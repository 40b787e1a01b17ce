CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH (connector = 'memory');

CREATE LOOKUP TABLE customers (
    id BIGINT, name STRING, country STRING, PRIMARY KEY (id)
) WITH (connector = 'memory');

CREATE STREAM three AS
SELECT b.price, a.seller, c.name
FROM bids AS b
JOIN asks AS a ON a.auction = b.auction AND a.ts BETWEEN b.ts AND b.ts + INTERVAL '1' MINUTE
LEFT JOIN customers AS c ON a.seller = c.id;
