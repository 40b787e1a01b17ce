-- Batch knows no processing time: of all windows of a bidder together it knows how many bids they have.
SELECT bidder, count(*) AS bid_count
FROM bid
GROUP BY bidder;
