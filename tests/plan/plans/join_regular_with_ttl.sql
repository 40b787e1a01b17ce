CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH (connector = 'memory');

CREATE STREAM inner_ttl WITH (state_ttl = '2 hours') AS
SELECT b.price, a.seller FROM bids AS b JOIN asks AS a ON a.auction = b.auction;

CREATE STREAM left_ttl WITH (state_ttl = '2 hours') AS
SELECT b.price, a.seller FROM bids AS b LEFT JOIN asks AS a ON a.auction = b.auction;
