CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, tags ARRAY<STRING>,
    ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');
CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, weight DOUBLE, ts TIMESTAMP, WATERMARK FOR ts AS ts
) WITH (connector = 'memory');
CREATE SOURCE rates (
    currency STRING, rate BIGINT, note STRING, ts TIMESTAMP, PRIMARY KEY (currency),
    WATERMARK FOR ts AS ts
) WITH (connector = 'memory');

CREATE STREAM joined WITH (state_ttl = '1 day') AS
SELECT b.price, a.seller FROM bids AS b JOIN asks AS a ON b.auction = a.auction AND b.price < a.price;

CREATE STREAM counted AS
SELECT auction, n FROM (SELECT auction, count(*) AS n, max(price) AS high FROM bids GROUP BY auction)
EMIT CHANGES;

CREATE STREAM top AS
SELECT auction, price FROM (
    SELECT auction, price, channel, row_number() OVER (PARTITION BY auction ORDER BY ts) AS r FROM bids)
WHERE r <= 3 EMIT CHANGES;

-- Of rows that are equal in order the first one counts, so they are not made more alike.
CREATE STREAM top_of_changes AS
SELECT currency FROM (
    SELECT *, row_number() OVER (PARTITION BY rate ORDER BY currency) AS r FROM rates)
WHERE r <= 3 EMIT CHANGES;

CREATE STREAM last_rates AS SELECT rate FROM rates EMIT CHANGES;

CREATE STREAM distinct_rows AS
SELECT price FROM (SELECT DISTINCT price, channel, ts FROM bids);

CREATE STREAM together AS
SELECT price FROM (SELECT price, channel, ts FROM bids UNION ALL SELECT price, 'ask', ts FROM asks);

CREATE STREAM held AS
SELECT auction, window_end FROM TUMBLE(bids, ts, INTERVAL '1' MINUTE) EMIT ON WINDOW CLOSE;

CREATE STREAM rows_only AS SELECT count(*) AS n FROM bids EMIT CHANGES;

CREATE STREAM generated AS SELECT auction FROM (SELECT auction, explode(tags) AS tag FROM bids);

CREATE STREAM converted AS
SELECT b.price, r.rate FROM bids AS b JOIN rates FOR SYSTEM_TIME AS OF b.ts AS r ON b.channel = r.currency;

-- Late rows have all columns.
CREATE STREAM with_late AS
SELECT auction, window_end, count(*) AS n FROM bids
GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)
EMIT ON WINDOW CLOSE LATE DATA TO late_bids;

-- A function that nobody reads goes, with its arguments.
CREATE STREAM functions AS
SELECT auction, before FROM (
    SELECT *, lag(price) OVER (PARTITION BY auction ORDER BY ts) AS before,
        max(bidder) OVER (PARTITION BY auction ORDER BY ts) AS highest
    FROM bids);
