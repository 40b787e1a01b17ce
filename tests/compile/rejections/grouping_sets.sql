CREATE SOURCE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
    WITH (connector = 'memory');
CREATE STREAM set_without_window AS
SELECT auction, count(*) AS n FROM bids GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE), auction WITH ROLLUP;
CREATE STREAM window_in_some_sets AS
SELECT auction, count(*) AS n FROM bids
GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE), ROLLUP(auction, window_start);
CREATE STREAM one_set AS
SELECT auction, grouping(auction) AS g, count(*) AS n FROM bids GROUP BY auction EMIT CHANGES;
CREATE STREAM not_a_key AS
SELECT auction, grouping(price) AS g, count(*) AS n FROM bids GROUP BY ROLLUP(auction) EMIT CHANGES;
CREATE STREAM too_many AS
SELECT count(*) AS n FROM bids GROUP BY CUBE(price, price, price, price, price, price, price, price, price, price, auction)
EMIT CHANGES;
CREATE STREAM late_copies AS
SELECT auction, count(*) AS n FROM bids GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE), ROLLUP(auction)
EMIT ON WINDOW CLOSE LATE DATA TO late_bids;
CREATE STREAM key_not_selected AS
SELECT auction, count(*) AS n FROM bids GROUP BY ROLLUP(auction) EMIT ON UPDATE;
