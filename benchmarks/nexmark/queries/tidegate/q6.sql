-- NEXMark q6. The average price of each seller's last ten sales and this one.
-- An auction is open for minutes: the bound of an hour loses no bid and keeps the event time.

CREATE SOURCE auction (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'auction');

CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid');

CREATE STREAM q6 WITH (state_ttl = '1 day') AS
WITH winning AS (
    SELECT a.seller, b.price AS final, b.date_time
    FROM auction AS a
    JOIN bid AS b
        ON a.id = b.auction
        AND b.date_time BETWEEN a.date_time AND a.date_time + INTERVAL '1' HOUR
        AND b.date_time <= a.expires
    QUALIFY row_number() OVER (
        PARTITION BY a.id, a.seller ORDER BY b.price DESC, b.date_time ASC
    ) = 1
)
SELECT
    seller,
    avg(final) OVER (
        PARTITION BY seller ORDER BY date_time ROWS BETWEEN 10 PRECEDING AND CURRENT ROW
    ) AS average
FROM winning
EMIT CHANGES;
