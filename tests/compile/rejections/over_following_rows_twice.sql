CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM a AS SELECT ntile(4) OVER (PARTITION BY auction ORDER BY ts) AS x FROM bids;
CREATE STREAM b AS SELECT lead(price) IGNORE NULLS OVER (PARTITION BY auction ORDER BY ts) AS x FROM bids;
CREATE STREAM c AS SELECT lead(price) OVER (PARTITION BY auction ORDER BY ts) AS x,
    lead(price) OVER (PARTITION BY bidder ORDER BY ts) AS y FROM bids;
CREATE STREAM d AS SELECT window_end, max(next) AS top FROM (
    SELECT ts, lead(price) OVER (PARTITION BY auction ORDER BY ts) AS next FROM bids)
GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE);
