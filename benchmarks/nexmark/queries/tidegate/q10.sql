-- NEXMark q10. Keep every bid in files, in a folder for each minute.

CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid');

CREATE STREAM q10 AS
SELECT
    auction, bidder, price, date_time, extra,
    date_format(date_time, 'yyyy-MM-dd') AS day, date_format(date_time, 'HH-mm') AS minute
FROM bid;

CREATE SINK q10_files FROM q10
WITH (connector = 'files', path = 'q10', partition_by = 'day, minute');
