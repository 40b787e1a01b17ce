-- NEXMark q0. Pass every bid through: what a pipeline costs by itself.

CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid');

CREATE STREAM q0 AS
SELECT auction, bidder, price, date_time, extra
FROM bid;
