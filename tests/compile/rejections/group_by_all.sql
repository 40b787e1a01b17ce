CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM more AS SELECT auction, channel, count(*) AS n FROM bids GROUP BY ALL channel EMIT CHANGES;
CREATE STREAM mixed AS SELECT price + count(*) AS n FROM bids GROUP BY ALL EMIT CHANGES;
CREATE STREAM no_window AS SELECT window_end, count(*) AS n FROM bids GROUP BY ALL EMIT ON WINDOW CLOSE;
