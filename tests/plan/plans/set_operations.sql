CREATE SOURCE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
    WITH (connector = 'memory');
CREATE SOURCE asks (auction INT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
    WITH (connector = 'memory');

-- Rows are final when the watermark has passed the time among their columns.
CREATE STREAM bids_without_ask AS
SELECT auction, ts FROM bids EXCEPT SELECT auction, ts FROM asks;

CREATE STREAM in_both_windows AS
SELECT auction, window_end FROM TUMBLE(bids, ts, INTERVAL '1' MINUTE)
INTERSECT ALL
SELECT auction, window_end FROM TUMBLE(asks, ts, INTERVAL '1' MINUTE)
EMIT ON WINDOW CLOSE;

-- Without such a time they come as changes.
CREATE STREAM asked_and_bid WITH (state_ttl = '1 day') AS
SELECT auction FROM bids INTERSECT SELECT auction FROM asks;
