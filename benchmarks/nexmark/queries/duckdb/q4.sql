WITH closing AS (
    SELECT auction.category, max(bid.price) AS final
    FROM auction
    JOIN bid ON bid.auction = auction.id
    WHERE bid.date_time >= auction.date_time AND bid.date_time <= auction.expires
    GROUP BY auction.id, auction.category
)
SELECT category, avg(final) AS average
FROM closing
GROUP BY category;
