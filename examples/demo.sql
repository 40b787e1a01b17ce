SET rows_per_epoch = 100000;

-- Half a million auction events, made up on the spot and the same on every machine. They come up to
-- two seconds out of order; the watermark waits for one of them, so a few rows will be too late.
CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '1' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid', rows = 500000,
        out_of_order_ms = 2000);

-- Tumbling windows: one row a price band every ten seconds, when the watermark has passed them.
CREATE STREAM price_bands AS
SELECT date_format(window_start, 'HH:mm:ss') AS from_time,
       date_format(window_end, 'HH:mm:ss') AS to_time,
       band, count(*) AS bids, count(DISTINCT bidder) AS bidders, max_by(auction, price) AS top_auction,
       repeat('▇', CAST(count(*) / 1500 AS INT)) AS chart
FROM (SELECT *, CASE WHEN price < 1000 THEN '1  under 10'
                     WHEN price < 100000 THEN '2  under 1,000'
                     WHEN price < 10000000 THEN '3  under 100,000'
                     ELSE '4  more' END AS band FROM bid)
GROUP BY band, TUMBLE(date_time, INTERVAL '10' SECOND)
EMIT ON WINDOW CLOSE;

-- Sessions: a bidder's spree lasts until nothing came from him for a second.
CREATE STREAM sprees AS
SELECT bidder, date_format(window_start, 'HH:mm:ss.SSS') AS from_time,
       date_format(window_end, 'HH:mm:ss.SSS') AS to_time,
       count(*) AS bids, round(avg(price)) AS average_price
FROM bid
GROUP BY bidder, SESSION(date_time, INTERVAL '1' SECOND)
HAVING count(*) > 3450
EMIT ON WINDOW CLOSE;

CREATE SINK bands_on_screen FROM price_bands WITH (connector = 'console', rows = 8);
CREATE SINK sprees_on_screen FROM sprees WITH (connector = 'console', rows = 5);
