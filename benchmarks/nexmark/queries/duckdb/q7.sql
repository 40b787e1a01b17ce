-- The bounds of NEXMark are inclusive: a bid at the very end of a window counts for it too.
WITH tops AS (
    SELECT time_bucket(INTERVAL 10 SECOND, date_time) AS window_start, max(price) AS top
    FROM bid
    GROUP BY ALL
)
SELECT bid.auction, bid.price, bid.bidder, bid.date_time, bid.extra
FROM tops
JOIN bid
    ON bid.price = tops.top
    AND bid.date_time >= tops.window_start
    AND bid.date_time <= tops.window_start + INTERVAL 10 SECOND;
