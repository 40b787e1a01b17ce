CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH (connector = 'memory');

CREATE STREAM inner_using AS
SELECT auction, b.price AS bid, a.price AS ask
FROM bids AS b JOIN asks AS a USING (auction, ts);

CREATE STREAM full_using AS
SELECT auction, b.price AS bid, a.price AS ask
FROM bids AS b FULL JOIN asks AS a USING (auction, ts);
