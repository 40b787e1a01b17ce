CREATE SOURCE bids (price BIGINT, currency STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'memory');
CREATE SOURCE history (currency STRING, rate DOUBLE, at TIMESTAMP, WATERMARK FOR at AS at)
WITH (connector = 'memory');
CREATE STREAM a AS SELECT b.price, r.rate
FROM bids AS b JOIN history FOR SYSTEM_TIME AS OF b.ts AS r ON b.currency = r.currency;
CREATE STREAM b AS SELECT b.price, r.rate
FROM bids AS b LEFT JOIN (
    SELECT * FROM history
    QUALIFY row_number() OVER (PARTITION BY currency ORDER BY rate DESC) = 1
) FOR SYSTEM_TIME AS OF b.ts AS r ON b.currency = r.currency;
