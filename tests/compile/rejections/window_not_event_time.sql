CREATE SOURCE bids (price BIGINT, ts TIMESTAMP, other TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE STREAM s AS SELECT window_end, max(price) AS top FROM bids GROUP BY TUMBLE(other, INTERVAL '1' MINUTE);
