-- NEXMark q1. Convert prices from dollars to euros.

CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid');

CREATE STREAM q1 AS
SELECT auction, bidder, 0.908 * price AS price, date_time, extra
FROM bid;
