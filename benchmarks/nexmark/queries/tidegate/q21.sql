-- NEXMark q21. A number for the channel of each bid: known ones by name, others from the URL.

CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid');

CREATE STREAM q21 AS
SELECT
    auction,
    bidder,
    price,
    channel,
    CASE lower(channel)
        WHEN 'apple' THEN '0'
        WHEN 'google' THEN '1'
        WHEN 'facebook' THEN '2'
        WHEN 'baidu' THEN '3'
        ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)
    END AS channel_id
FROM bid
WHERE lower(channel) IN ('apple', 'google', 'facebook', 'baidu')
    OR regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) <> '';
