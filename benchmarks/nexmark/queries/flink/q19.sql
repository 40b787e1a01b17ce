SELECT auction, bidder, price, channel, url, date_time, extra, rank_number
FROM (
    SELECT
        *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, date_time ASC) AS rank_number
    FROM bid
)
WHERE rank_number <= 10
