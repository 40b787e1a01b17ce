CREATE SOURCE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'memory');
CREATE SOURCE asks (auction BIGINT, price STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'memory');

CREATE STREAM s AS
SELECT auction, window_end, max(price) AS top FROM bids GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)
UNION ALL
SELECT auction, window_end, count(price) AS top FROM asks GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)
EMIT ON WINDOW CLOSE LATE DATA TO late_rows;
