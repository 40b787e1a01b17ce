SET rows_per_epoch = 100000;

-- Half a million auction events, made up on the spot and the same on every machine. They come up to
-- three seconds out of order and the watermark waits for one, so a few are too late for a session.
CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '1' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid', rows = 500000,
        start = '2026-01-01 12:00:03', out_of_order_ms = 3000);

-- Tumbling windows: every ten seconds a row for each price band, when the watermark has passed them.
CREATE STREAM price_bands AS
SELECT date_format(window_start, 'HH:mm:ss') AS since, date_format(window_end, 'HH:mm:ss') AS until,
       band, count(*) AS bids, count(DISTINCT bidder) AS bidders, max_by(auction, price) AS top_auction,
       repeat('▇', CAST(count(*) / 1500 AS INT)) AS chart
FROM (SELECT *, CASE WHEN price < 1000 THEN 'under 10'
                     WHEN price < 100000 THEN 'under 1,000'
                     WHEN price < 10000000 THEN 'under 100,000'
                     ELSE 'more' END AS band
      FROM bid)
GROUP BY band, TUMBLE(date_time, INTERVAL '10' SECOND)
EMIT ON WINDOW CLOSE;

-- Sessions: a bidder's spree lasts until he has been silent for a second.
CREATE STREAM sprees AS
SELECT bidder, date_format(window_start, 'HH:mm:ss.SSS') AS since,
       date_format(window_end, 'HH:mm:ss.SSS') AS until,
       count(*) AS bids, CAST(avg(price) AS BIGINT) AS average_price
FROM bid
GROUP BY bidder, SESSION(date_time, INTERVAL '1' SECOND)
HAVING count(*) > 3450
EMIT ON WINDOW CLOSE;

CREATE SINK bands_on_screen FROM price_bands WITH (connector = 'console', rows = 8);
CREATE SINK sprees_on_screen FROM sprees WITH (connector = 'console', rows = 5);
