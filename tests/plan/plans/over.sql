CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM running AS
SELECT auction, price, ts,
    sum(price) OVER (PARTITION BY auction ORDER BY ts ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS last_ten,
    max(price) OVER (
        PARTITION BY auction ORDER BY ts RANGE BETWEEN INTERVAL '1' MINUTE PRECEDING AND CURRENT ROW
    ) AS last_minute,
    lag(price) OVER (PARTITION BY auction ORDER BY ts) AS before
FROM bids;

CREATE STREAM of_groups AS
SELECT window_end, count(*) AS n, sum(count(*)) OVER (ORDER BY window_end) AS so_far
FROM bids
GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE);

-- Functions of other partitions are operators of their own; what looks ahead by rows comes last.
CREATE STREAM several AS
SELECT auction, price > 2 * lag(price) OVER w AS doubled, avg(price) OVER bidders AS usual,
    lead(price) OVER w AS next
FROM bids
WINDOW w AS (PARTITION BY auction ORDER BY ts), bidders AS (PARTITION BY bidder ORDER BY ts);

CREATE STREAM around AS
SELECT auction, count(*) OVER (
    PARTITION BY auction ORDER BY ts
    RANGE BETWEEN INTERVAL '10' SECOND PRECEDING AND INTERVAL '10' SECOND FOLLOWING
) AS n FROM bids QUALIFY n > 3 AND auction > 7;

CREATE STREAM shares AS
SELECT auction, window_end, count(*) / sum(count(*)) OVER (PARTITION BY window_end) AS share,
    ntile(4) OVER (PARTITION BY window_end ORDER BY max(price)) AS quarter
FROM bids GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE);

CREATE STREAM corrected WITH (state_ttl = '1 day') AS
SELECT auction, price, price / sum(price) OVER (PARTITION BY auction) AS share FROM bids EMIT CHANGES;

-- In the order of arrival every row is a row of its own.
CREATE STREAM by_arrival WITH (state_ttl = '1 day') AS
SELECT auction, rank() OVER arrival AS n, sum(price) OVER arrival AS so_far,
    max(price) OVER (arrival ROWS 9 PRECEDING) AS last_ten
FROM bids WINDOW arrival AS (PARTITION BY auction ORDER BY PROCTIME()) EMIT CHANGES;
