CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM a AS SELECT window_end, price FROM TUMBLE(bids, ts, INTERVAL '1' MINUTE) ORDER BY price LIMIT price;
CREATE STREAM b AS SELECT window_end, price FROM TUMBLE(bids, ts, INTERVAL '1' MINUTE) ORDER BY price LIMIT auction;
CREATE STREAM c AS SELECT window_end, price FROM TUMBLE(bids, ts, INTERVAL '1' MINUTE) ORDER BY price LIMIT ALL;
CREATE STREAM d AS SELECT window_end, price FROM TUMBLE(bids, ts, INTERVAL '1' MINUTE) LIMIT 3 OFFSET price;
CREATE STREAM e AS SELECT () AS nothing FROM bids;
