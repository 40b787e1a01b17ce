-- NEXMark q2. Bids on some auctions only.

CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid');

CREATE STREAM q2 AS
SELECT auction, price
FROM bid
WHERE auction % 123 = 0;
