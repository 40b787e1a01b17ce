CREATE SOURCE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'memory');

CREATE STREAM tops AS
SELECT auction, window_end, max(price) AS top FROM (SELECT auction, price + 1 AS price, ts FROM bids) AS b
GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)
EMIT ON WINDOW CLOSE LATE DATA TO late_bids;

CREATE STREAM late_tops AS
SELECT auction, late_window_end, max(price) AS top FROM late_bids GROUP BY auction, late_window_end EMIT CHANGES;

CREATE STREAM dear AS SELECT auction, price, late_watermark FROM late_bids WHERE price > 100;

CREATE STREAM over_dear AS SELECT count(*) AS n FROM dear EMIT ON UPDATE;
