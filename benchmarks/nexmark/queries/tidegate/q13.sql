-- NEXMark q13. Add to each bid what a table that is at hand says of it, as of now.
-- The table has the keys 0 to 9,999; `python -m benchmarks.nexmark` fills it.

CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid');

CREATE LOOKUP TABLE side_input (key BIGINT, value STRING, PRIMARY KEY (key))
WITH (connector = 'memory');

CREATE STREAM q13 AS
SELECT b.auction, b.bidder, b.price, b.date_time, s.value
FROM bid AS b
JOIN side_input FOR SYSTEM_TIME AS OF PROCTIME() AS s ON b.auction % 10000 = s.key;
