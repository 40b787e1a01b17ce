CREATE SOURCE bids (auction BIGINT, price BIGINT, tags MAP<STRING, STRING>, ts TIMESTAMP,
    WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE SOURCE asks (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
    WITH (connector = 'memory');
CREATE STREAM s AS SELECT b.auction, b.tags, a.price FROM bids AS b LEFT JOIN asks AS a
ON a.auction = b.auction AND a.ts = b.ts AND a.price < b.price;
