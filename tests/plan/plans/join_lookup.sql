CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE LOOKUP TABLE customers (
    id BIGINT, name STRING, country STRING, PRIMARY KEY (id)
) WITH (connector = 'memory');

CREATE STREAM named AS
SELECT b.price, c.name, b.ts FROM bids AS b JOIN customers AS c ON b.bidder = c.id;

CREATE STREAM named_or_not AS
SELECT window_end, c.country, count(*) AS n
FROM bids AS b
LEFT JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON b.bidder = c.id AND c.country <> 'XX'
GROUP BY c.country, TUMBLE(b.ts, INTERVAL '1' MINUTE);

-- All rows ask for the same.
CREATE STREAM first_customer AS
SELECT b.price, c.name FROM bids AS b JOIN customers AS c ON c.id = 1 AND c.country <> 'XX';
