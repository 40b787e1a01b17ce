WITH winning AS (
    SELECT
        auction.id,
        max_by(struct_pack(bidder := bidder, price := price, at := bid.date_time, extra := bid.extra),
            struct_pack(price := price, first := -epoch_us(bid.date_time))) AS best
    FROM auction
    JOIN bid ON bid.auction = auction.id
    WHERE bid.date_time >= auction.date_time AND bid.date_time <= auction.expires
    GROUP BY auction.id
),
sales AS (
    SELECT auction.seller, best.price AS price, best.at AS sold_at
    FROM winning
    JOIN auction USING (id)
)
SELECT sale.seller, avg(price) OVER last_ones AS average
FROM sales AS sale
WINDOW last_ones AS (PARTITION BY sale.seller ORDER BY sold_at ROWS 10 PRECEDING);
