CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH (connector = 'memory');

CREATE STREAM within AS
SELECT w.auction, w.top, a.seller
FROM (SELECT auction, window_start, window_end, max(price) AS top FROM bids
      GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)) AS w
JOIN asks AS a ON a.auction = w.auction AND a.ts >= w.window_start AND a.ts < w.window_end;
