WITH named AS (
    SELECT
        *,
        list_position(['Apple', 'Google', 'Facebook', 'Baidu'], channel) AS number,
        split_part(split_part(url, '&channel_id=', 2), '&', 1) AS in_url
    FROM bid
)
SELECT auction, bidder, price, channel, coalesce(CAST(number - 1 AS VARCHAR), in_url) AS channel_id
FROM named
WHERE number IS NOT NULL OR in_url <> '';
