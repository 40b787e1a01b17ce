CREATE SOURCE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
    WITH (connector = 'memory');
CREATE STREAM once AS SELECT DISTINCT auction, ts FROM bids LATE DATA TO too_late;
CREATE STREAM once_at_close AS SELECT DISTINCT auction, price, ts FROM bids EMIT ON WINDOW CLOSE;
