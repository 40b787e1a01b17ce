-- NEXMark q5. Hot items: the auctions with the most bids of the last 10 seconds, every 2 seconds.

CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid');

CREATE STREAM q5 AS
WITH counts AS (
    SELECT auction, window_start, window_end, count(*) AS num
    FROM bid
    GROUP BY auction, HOP(date_time, INTERVAL '2' SECOND, INTERVAL '10' SECOND)
),
most AS (
    SELECT window_start, window_end, max(num) AS maxn
    FROM counts
    GROUP BY window_start, window_end
)
SELECT c.auction, c.num, c.window_start, c.window_end
FROM counts AS c
JOIN most AS m
    ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.num >= m.maxn
EMIT ON WINDOW CLOSE;
