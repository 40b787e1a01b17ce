-- A bid is in five windows: those that begin in the ten seconds up to it, at even seconds.
WITH hops AS (
    SELECT
        auction,
        time_bucket(INTERVAL 2 SECOND, date_time) - to_seconds(2 * back) AS window_start
    FROM bid, range(5) AS steps (back)
),
counts AS (
    SELECT window_start, auction, count(*) AS num
    FROM hops
    GROUP BY ALL
)
SELECT auction, num, window_start, window_start + INTERVAL 10 SECOND AS window_end
FROM counts
QUALIFY rank() OVER (PARTITION BY window_start ORDER BY num DESC) = 1;
