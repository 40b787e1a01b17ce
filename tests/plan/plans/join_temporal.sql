CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE rates (
    currency STRING, rate DOUBLE, ts TIMESTAMP,
    PRIMARY KEY (currency), WATERMARK FOR ts AS ts
) WITH (connector = 'memory');

CREATE STREAM in_euros AS
SELECT b.auction, b.price * r.rate AS price, b.ts
FROM bids AS b JOIN rates FOR SYSTEM_TIME AS OF b.ts AS r ON b.channel = r.currency;

CREATE STREAM in_euros_if_known AS
SELECT window_end, sum(b.price * r.rate) AS turnover
FROM bids AS b LEFT JOIN rates FOR SYSTEM_TIME AS OF b.ts AS r ON b.channel = r.currency
GROUP BY TUMBLE(b.ts, INTERVAL '1' MINUTE);

CREATE STREAM strong_rates AS SELECT currency, rate, ts FROM rates WHERE rate > 1 EMIT CHANGES;

-- A rate that is no longer strong ends the strong one before it.
CREATE STREAM in_strong_euros AS
SELECT b.auction, b.price * r.rate AS price
FROM bids AS b LEFT JOIN strong_rates FOR SYSTEM_TIME AS OF b.ts AS r
ON b.channel = r.currency AND b.price > r.rate;

CREATE STREAM cheap AS
SELECT b.auction, b.price * r.rate AS price
FROM bids AS b JOIN rates FOR SYSTEM_TIME AS OF b.ts AS r ON b.channel = r.currency AND r.rate < 9
WHERE r.currency <> 'EUR';
