CREATE SOURCE bids (
    auction BIGINT NOT NULL, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM of_select AS SELECT auction, price, FROM bids;
CREATE STREAM of_keys AS SELECT auction, count(*) AS n FROM bids GROUP BY auction, HAVING count(*) > 1 EMIT CHANGES;
CREATE STREAM before_emit AS SELECT auction, count(*) AS n FROM bids GROUP BY auction, EMIT CHANGES;
CREATE STREAM of_list AS SELECT auction FROM bids WHERE price IN (1, 2,);
CREATE STREAM of_call AS SELECT coalesce(price, 0,) AS price FROM bids;
CREATE STREAM twice AS SELECT auction,, price FROM bids;
CREATE STREAM in_front AS SELECT , price FROM bids;
CREATE STREAM of_tables AS SELECT price FROM bids, WHERE price > 1;
CREATE STREAM of_over AS SELECT lag(price) OVER (PARTITION BY auction, ORDER BY ts) AS p FROM bids;
CREATE STREAM of_with AS WITH a AS (SELECT price FROM bids), SELECT price FROM a;
INSERT INTO bids VALUES (1, 2, TIMESTAMP '2026-01-01 09:00:00',);
INSERT INTO bids VALUES (1, 2, TIMESTAMP '2026-01-01 09:00:00'),;
