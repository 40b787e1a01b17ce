CREATE SOURCE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
    WITH (connector = 'memory');
CREATE SOURCE asks (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
    WITH (connector = 'memory');

CREATE STREAM bids_with_lower_asks AS
SELECT b.auction, b.price, a.price AS asked FROM bids AS b LEFT JOIN asks AS a
ON a.auction = b.auction AND a.ts BETWEEN b.ts - INTERVAL '1' MINUTE AND b.ts AND a.price < b.price;

CREATE STREAM bids_below_all_asks AS
SELECT b.auction, b.price FROM TUMBLE(bids, ts, INTERVAL '1' MINUTE) AS b
WHERE NOT EXISTS (
    SELECT 1 FROM TUMBLE(asks, ts, INTERVAL '1' MINUTE) AS a
    WHERE a.window_end = b.window_end AND a.price < b.price)
EMIT ON WINDOW CLOSE;
