-- NEXMark q19. The ten highest bids on each auction; of equal ones the first.

CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid');

CREATE STREAM q19 WITH (state_ttl = '1 day') AS
SELECT
    auction, bidder, price, channel, url, date_time, extra,
    row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time ASC) AS rank_number
FROM bid
QUALIFY rank_number <= 10
EMIT CHANGES;
