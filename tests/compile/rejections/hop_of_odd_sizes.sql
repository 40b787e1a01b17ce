CREATE SOURCE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'memory');

CREATE STREAM odd AS SELECT count(*) AS n FROM bids
GROUP BY HOP(ts, INTERVAL '1001' MILLISECOND, INTERVAL '10' SECOND);

-- Pieces of a second, and windows that are put on the rows themselves, are fine.
CREATE STREAM sevens AS SELECT count(*) AS n FROM bids
GROUP BY HOP(ts, INTERVAL '7' SECOND, INTERVAL '1' MINUTE);
CREATE STREAM rows AS SELECT window_end, count(*) AS n
FROM HOP(bids, ts, INTERVAL '1001' MILLISECOND, INTERVAL '10' SECOND) GROUP BY window_start, window_end;
