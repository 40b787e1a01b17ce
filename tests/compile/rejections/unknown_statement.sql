UPDATE bids SET price = 1;
