SELECT a.auction, a.num, a.window_start, a.window_end
FROM (
    SELECT auction, COUNT(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(rowtime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end
) AS a
JOIN (
    SELECT MAX(num) AS maxn, window_start, window_end
    FROM (
        SELECT COUNT(*) AS num, window_start, window_end
        FROM TABLE(HOP(TABLE bid, DESCRIPTOR(rowtime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
        GROUP BY auction, window_start, window_end
    ) AS counts
    GROUP BY window_start, window_end
) AS m
    ON a.window_start = m.window_start AND a.window_end = m.window_end AND a.num >= m.maxn
