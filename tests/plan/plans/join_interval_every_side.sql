CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH (connector = 'memory');

CREATE STREAM inner_side AS
SELECT b.price, a.seller FROM bids AS b JOIN asks AS a
ON a.auction = b.auction AND b.ts BETWEEN a.ts - INTERVAL '1' MINUTE AND a.ts + INTERVAL '5' MINUTE
AND b.price > a.price;

CREATE STREAM left_side AS
SELECT b.price, a.seller FROM bids AS b LEFT JOIN asks AS a
ON a.auction = b.auction AND a.ts >= b.ts AND a.ts < b.ts + INTERVAL '1' HOUR;

CREATE STREAM right_side AS
SELECT b.price, a.seller FROM bids AS b RIGHT JOIN asks AS a
ON a.auction = b.auction AND a.ts - INTERVAL '10' SECOND <= b.ts AND a.ts > b.ts;

CREATE STREAM full_side AS
SELECT b.price, a.seller FROM bids AS b FULL JOIN asks AS a
ON a.auction <=> b.auction AND a.ts BETWEEN b.ts AND b.ts + INTERVAL '1 hour 30 minutes';

CREATE STREAM semi_side AS
SELECT b.price FROM bids AS b SEMI JOIN asks AS a
ON a.auction = b.auction AND a.ts = b.ts;

CREATE STREAM anti_side AS
SELECT price FROM bids AS b ANTI JOIN asks AS a
ON a.auction = b.auction AND a.ts BETWEEN b.ts AND b.ts + INTERVAL '1' HOUR;
