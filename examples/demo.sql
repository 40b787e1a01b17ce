SET rows_per_epoch = 500000;

-- Two million auction events, made up on the spot and the same on every machine.
CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid', rows = 2000000);

-- A stream is a named query. This one converts prices, as NEXMark's q1 does.
CREATE STREAM bids_in_euros AS
SELECT auction, bidder, channel, round(price * 0.908 / 100, 2) AS euros, date_time,
       date_format(date_time, 'HH-mm') AS minute
FROM bid;

-- Streams can read streams.
CREATE STREAM big_bids AS
SELECT date_time, auction, bidder, channel, euros
FROM bids_in_euros
WHERE euros > 905000;

-- Each sink gets every row once, also when the run is killed and started again.
CREATE SINK on_screen FROM big_bids WITH (connector = 'console', rows = 6);
CREATE SINK archive FROM bids_in_euros
WITH (connector = 'files', path = '.tidegate/demo/archive', format = 'parquet', partition_by = 'minute');
