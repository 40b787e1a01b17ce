-- NEXMark q20. Bids with all there is to know of their auction, for auctions of category 10.
-- They meet without a time bound, so a day after its last match a row is forgotten.

CREATE SOURCE auction (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'auction');

CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid');

CREATE STREAM q20 WITH (state_ttl = '1 day') AS
SELECT
    b.auction, b.bidder, b.price, b.channel, b.url, b.date_time AS bid_date_time,
    b.extra AS bid_extra,
    a.item_name, a.description, a.initial_bid, a.reserve, a.date_time AS auction_date_time,
    a.expires, a.seller, a.category, a.extra AS auction_extra
FROM bid AS b
JOIN auction AS a ON b.auction = a.id
WHERE a.category = 10;
