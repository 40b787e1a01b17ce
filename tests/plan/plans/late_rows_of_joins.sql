CREATE SOURCE bids (auction BIGINT, price BIGINT, note STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'memory');
CREATE SOURCE asks (auction BIGINT, seller STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'memory');

-- Late rows have all columns of both sides, and WHERE does not take any of them away.
CREATE STREAM near AS SELECT b.price FROM bids AS b JOIN asks AS a
ON a.auction = b.auction AND a.ts BETWEEN b.ts AND b.ts + INTERVAL '1' MINUTE
WHERE b.price > 10 EMIT ON WINDOW CLOSE LATE DATA TO late_near;

CREATE STREAM either AS
SELECT auction, window_end, max(price) AS top FROM bids GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)
UNION ALL
SELECT auction, window_end, count(*) AS top FROM asks GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)
EMIT ON WINDOW CLOSE LATE DATA TO late_either;
