-- NEXMark q14. Compute: a price in euros, the time of day, how often a letter occurs in a text.
-- The filler of our events is of hexadecimal digits, so the letter is a C.

CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid');

CREATE STREAM q14 AS
SELECT
    auction,
    bidder,
    0.908 * price AS price,
    CASE
        WHEN hour(date_time) >= 8 AND hour(date_time) <= 18 THEN 'dayTime'
        WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime'
        ELSE 'otherTime'
    END AS bid_time_type,
    date_time,
    extra,
    length(extra) - length(replace(extra, 'C', '')) AS c_counts
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000;
