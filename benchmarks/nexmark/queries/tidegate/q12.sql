-- NEXMark q12. How many bids does a user make within 10 seconds of processing time?

CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid');

CREATE STREAM q12 AS
SELECT bidder, count(*) AS bid_count, window_start AS starttime, window_end AS endtime
FROM bid
GROUP BY bidder, TUMBLE(PROCTIME(), INTERVAL '10' SECOND)
EMIT ON WINDOW CLOSE;
