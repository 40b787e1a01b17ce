CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, tags ARRAY<STRING>,
    ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');
CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, weight DOUBLE, ts TIMESTAMP, WATERMARK FOR ts AS ts
) WITH (connector = 'memory');
CREATE SOURCE rates (
    currency STRING, rate BIGINT, note STRING, ts TIMESTAMP, PRIMARY KEY (currency),
    WATERMARK FOR ts AS ts
) WITH (connector = 'memory');

CREATE STREAM inner_join WITH (state_ttl = '1 day') AS
SELECT b.auction, b.price, a.seller FROM bids AS b JOIN asks AS a ON b.auction = a.auction AND a.price > 3
WHERE b.channel = 'web' AND a.seller = 5 AND b.auction > 7 AND b.price < a.price;

CREATE STREAM left_join AS
SELECT b.auction, a.seller FROM bids AS b
LEFT JOIN asks AS a ON b.auction = a.auction AND a.ts BETWEEN b.ts - INTERVAL '1' MINUTE AND b.ts
    AND a.price > 3 AND b.price > 4
WHERE b.channel = 'web' AND a.seller IS NULL;

CREATE STREAM full_join AS
SELECT b.auction, a.seller FROM bids AS b
FULL JOIN asks AS a ON b.auction = a.auction AND a.ts BETWEEN b.ts - INTERVAL '1' MINUTE AND b.ts
WHERE b.channel = 'web' OR a.seller IS NULL;

CREATE STREAM anti_join AS
SELECT b.auction FROM bids AS b
ANTI JOIN asks AS a ON b.auction = a.auction AND a.ts BETWEEN b.ts - INTERVAL '1' MINUTE AND b.ts
    AND a.price > 3 AND b.price > 4
WHERE b.auction > 7;

CREATE STREAM window_join AS
SELECT b.auction, a.seller, b.window_end
FROM TUMBLE(bids, ts, INTERVAL '1' MINUTE) AS b JOIN TUMBLE(asks, ts, INTERVAL '1' MINUTE) AS a
ON b.auction = a.auction AND b.window_end = a.window_end
WHERE b.window_end > TIMESTAMP '2024-01-01 00:00:00' AND a.window_start < b.ts;

-- Never the versions: another one would be found.
CREATE STREAM temporal AS
SELECT b.auction, r.rate FROM bids AS b JOIN rates FOR SYSTEM_TIME AS OF b.ts AS r
ON b.channel = r.currency WHERE b.channel = 'EUR' AND b.price > 5 AND r.rate > 1;

-- A row without a partner never meets the division; doubles that are equal can differ in sign.
CREATE STREAM guarded WITH (state_ttl = '1 day') AS
SELECT b.auction FROM bids AS b JOIN asks AS a ON b.price = a.weight
WHERE 10 / b.price > 1 AND b.bidder <> 0 AND a.weight > 0;
