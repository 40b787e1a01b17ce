-- NEXMark q4. The average closing price of each category, corrected with every bid.

CREATE SOURCE auction (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'auction');

CREATE SOURCE bid (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'bid');

CREATE STREAM q4 WITH (state_ttl = '1 day') AS
SELECT category, avg(final) AS average
FROM (
    SELECT a.id, a.category, max(b.price) AS final
    FROM auction AS a
    JOIN bid AS b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
    GROUP BY a.id, a.category
) AS closing
GROUP BY category
EMIT CHANGES;
