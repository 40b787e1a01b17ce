-- NEXMark q9. The winning bid of every auction: the highest, and of equal ones the first.
-- An auction is open for minutes: the bound of an hour loses no bid and keeps the event time.

CREATE SOURCE auction (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'auction');

CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid');

CREATE STREAM q9 WITH (state_ttl = '1 day') AS
SELECT
    a.id, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time, a.expires,
    a.seller, a.category, a.extra,
    b.auction, b.bidder, b.price, b.date_time AS bid_date_time, b.extra AS bid_extra
FROM auction AS a
JOIN bid AS b
    ON a.id = b.auction
    AND b.date_time BETWEEN a.date_time AND a.date_time + INTERVAL '1' HOUR
    AND b.date_time <= a.expires
QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time ASC) = 1
EMIT CHANGES;
