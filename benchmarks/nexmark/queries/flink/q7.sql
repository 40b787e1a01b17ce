SELECT b.auction, b.price, b.bidder, b.date_time, b.extra
FROM bid AS b
JOIN (
    SELECT MAX(price) AS maxprice, window_end
    FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(rowtime), INTERVAL '10' SECOND))
    GROUP BY window_start, window_end
) AS m
    ON b.price = m.maxprice
    AND b.date_time BETWEEN m.window_end - INTERVAL '10' SECOND AND m.window_end
