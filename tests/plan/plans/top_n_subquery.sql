CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM best AS
SELECT auction, price, place
FROM (
    SELECT auction, price, dense_rank() OVER (PARTITION BY auction ORDER BY price DESC) AS place
    FROM bids
) AS ranked
WHERE place < 4 AND price > 10;

CREATE STREAM best_of_window AS
SELECT auction, n, window_end
FROM (
    SELECT *, row_number() OVER (PARTITION BY window_start, window_end ORDER BY n DESC) AS place
    FROM (
        SELECT auction, window_start, window_end, count(*) AS n
        FROM bids GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)
    ) AS counts
) AS ranked
WHERE place <= 2;
