SELECT
    auction,
    bidder,
    CAST(price AS DECIMAL(20, 0)) * 0.908 AS price,
    CASE
        WHEN date_part('hour', date_time) BETWEEN 8 AND 18 THEN 'dayTime'
        WHEN date_part('hour', date_time) IN (7, 19) THEN 'otherTime'
        ELSE 'nightTime'
    END AS bid_time_type,
    date_time,
    extra,
    len(list_filter(string_split(extra, ''), lambda letter: letter = 'C')) AS c_counts
FROM bid
WHERE price * 908 > 1000000000 AND price * 908 < 50000000000;
