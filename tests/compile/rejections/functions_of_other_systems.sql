CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM a AS SELECT window_start, group_concat(channel) AS channels FROM bids GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE);
CREATE STREAM b AS SELECT json_extract(channel, '$.name') AS name, epoch_ms(price) AS at FROM bids;
CREATE STREAM c AS SELECT latest_by_offset(price) AS price FROM bids GROUP BY auction EMIT CHANGES;
CREATE STREAM d AS SELECT TUMBLE_START(ts, INTERVAL '1' MINUTE) AS start, count(*) AS n FROM bids GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE);
