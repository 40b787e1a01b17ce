CREATE SOURCE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'memory');
CREATE STREAM s AS
SELECT auction, window_end, max(price) AS top FROM bids GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)
EMIT ON WINDOW CLOSE LATE DATA TO late_bids;

CREATE STREAM late_tops AS
SELECT window_start, max(price) AS top FROM late_bids GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE);
