CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM marked AS SELECT auction, uuid() AS mark, ts FROM bids;
CREATE STREAM a AS SELECT DISTINCT auction, mark, ts FROM marked;
CREATE STREAM b AS
SELECT window_end, count(*) AS n FROM bids WHERE rand() < 0.1 GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE);
