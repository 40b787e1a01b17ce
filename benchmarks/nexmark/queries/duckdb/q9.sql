WITH winning AS (
    SELECT
        auction.id,
        max_by(struct_pack(bidder := bidder, price := price, at := bid.date_time, extra := bid.extra),
            struct_pack(price := price, first := -epoch_us(bid.date_time))) AS best
    FROM auction
    JOIN bid ON bid.auction = auction.id
    WHERE bid.date_time >= auction.date_time AND bid.date_time <= auction.expires
    GROUP BY auction.id
)
SELECT
    auction.id, item_name, description, initial_bid, reserve, date_time, expires, seller, category,
    auction.extra, auction.id AS auction, best.bidder AS bidder, best.price AS price,
    best.at AS bid_date_time, best.extra AS bid_extra
FROM winning
JOIN auction USING (id);
