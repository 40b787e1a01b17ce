CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH (connector = 'memory');

CREATE STREAM raw_rows AS
SELECT b.auction, b.price, a.seller, b.window_end
FROM TUMBLE(bids, ts, INTERVAL '1' MINUTE) AS b
LEFT JOIN TUMBLE(asks, ts, INTERVAL '1' MINUTE) AS a
ON b.auction = a.auction AND b.window_start = a.window_start AND b.window_end = a.window_end;

CREATE STREAM aggregates AS
SELECT b.auction, b.n, a.n AS asks
FROM (SELECT auction, window_end, count(*) AS n FROM bids
      GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)) AS b
FULL JOIN (SELECT auction, window_end, count(*) AS n FROM asks
           GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)) AS a
ON b.auction = a.auction AND b.window_end = a.window_end;
