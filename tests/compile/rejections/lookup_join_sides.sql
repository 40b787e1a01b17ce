CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE LOOKUP TABLE customers (
    id BIGINT, name STRING, country STRING, PRIMARY KEY (id)
) WITH (connector = 'memory');

CREATE SOURCE rates (
    currency STRING, rate DOUBLE, ts TIMESTAMP,
    PRIMARY KEY (currency), WATERMARK FOR ts AS ts
) WITH (connector = 'memory');

CREATE LOOKUP TABLE countries (code STRING, name STRING, PRIMARY KEY (code))
WITH (connector = 'postgres', table = 'countries', database = 'shop', user = 'me', password = 'secret');

CREATE STREAM a AS SELECT c.name FROM customers AS c JOIN bids AS b ON b.bidder = c.id;
CREATE STREAM b AS SELECT c.name FROM bids AS b RIGHT JOIN customers AS c ON b.bidder = c.id;
CREATE STREAM c AS SELECT c.name FROM bids AS b JOIN countries AS c ON b.channel > c.code;
CREATE STREAM d AS SELECT r.rate FROM bids AS b JOIN rates FOR SYSTEM_TIME AS OF PROCTIME() AS r ON b.channel = r.currency;
CREATE STREAM e AS SELECT c.name FROM bids AS b ASOF LEFT JOIN customers AS c MATCH_CONDITION (b.price >= c.id) ON b.bidder = c.id;
CREATE STREAM f AS SELECT c.name FROM bids AS b JOIN customers FOR SYSTEM_TIME AS OF b.ts AS c ON b.bidder = c.id;
CREATE STREAM g AS SELECT r.rate FROM bids AS b ASOF JOIN rates FOR SYSTEM_TIME AS OF b.ts AS r MATCH_CONDITION (b.ts >= r.ts) ON b.channel = r.currency;
