SELECT DISTINCT ON (bidder, auction) auction, bidder, price, channel, url, date_time, extra
FROM bid
ORDER BY bidder, auction, date_time DESC;
