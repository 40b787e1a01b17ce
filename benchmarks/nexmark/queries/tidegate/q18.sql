-- NEXMark q18. The last bid of each bidder on each auction.

CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid');

CREATE STREAM q18 WITH (state_ttl = '1 day') AS
SELECT auction, bidder, price, channel, url, date_time, extra
FROM bid
QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) = 1
EMIT CHANGES;
