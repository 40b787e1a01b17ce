CREATE SOURCE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'memory');
CREATE SOURCE prices (auction BIGINT, price BIGINT, ts TIMESTAMP, PRIMARY KEY (auction), WATERMARK FOR ts AS ts)
WITH (connector = 'memory');

CREATE STREAM apart WITH (pipeline = 'slow') AS
SELECT auction, window_end, max(price) AS top FROM bids GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)
EMIT ON WINDOW CLOSE LATE DATA TO late_apart;
CREATE STREAM elsewhere AS SELECT auction, price FROM late_apart;

CREATE STREAM of_changes AS
SELECT window_end, sum(price) AS total FROM prices GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE)
EMIT ON WINDOW CLOSE LATE DATA TO late_changes;
CREATE STREAM sum_of_changes AS SELECT sum(price) AS total FROM late_changes EMIT CHANGES;

CREATE STREAM twice AS
SELECT window_end, count(*) AS n FROM (SELECT price, auction AS price, ts FROM bids) AS b
GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE) EMIT ON WINDOW CLOSE LATE DATA TO late_twice;
CREATE STREAM of_twice AS SELECT ts FROM late_twice;
