CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM ticks AS
SELECT window_time, count(*) AS n FROM bids GROUP BY TUMBLE(PROCTIME(), INTERVAL '1' MINUTE);
CREATE STREAM s AS
SELECT window_end, sum(n) AS n FROM ticks GROUP BY TUMBLE(window_time, INTERVAL '1' HOUR);
