WITH ranked AS (
    SELECT bid.*, row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time) AS rank_number
    FROM bid
)
SELECT auction, bidder, price, channel, url, date_time, extra, rank_number
FROM ranked
WHERE rank_number < 11;
