-- NEXMark q11. How many bids did a user make in each session of activity?

CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid');

CREATE STREAM q11 AS
SELECT bidder, count(*) AS bid_count, window_start AS starttime, window_end AS endtime
FROM bid
GROUP BY bidder, SESSION(date_time, INTERVAL '10' SECOND)
EMIT ON WINDOW CLOSE;
