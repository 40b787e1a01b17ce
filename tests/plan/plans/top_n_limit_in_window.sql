CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM top_auctions AS
SELECT auction, window_end, count(*) AS n
FROM bids
GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)
ORDER BY n DESC LIMIT 3;

CREATE STREAM sorted AS
SELECT auction, price, window_start, window_end
FROM HOP(bids, ts, INTERVAL '10' SECOND, INTERVAL '1' MINUTE)
ORDER BY price DESC, ts;

CREATE STREAM runners_up AS
SELECT auction, price, window_end FROM TUMBLE(bids, ts, INTERVAL '1' MINUTE) ORDER BY price DESC LIMIT 2 OFFSET 1;
