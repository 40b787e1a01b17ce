SELECT auction, bidder, price, date_time, value
FROM bid
JOIN side_input ON side_input.key = mod(auction, 10000);
