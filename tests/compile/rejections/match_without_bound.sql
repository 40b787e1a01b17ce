CREATE SOURCE ticker (symbol STRING, price DOUBLE, ts TIMESTAMP, other TIMESTAMP,
    WATERMARK FOR ts AS ts) WITH (connector = 'memory');

CREATE STREAM s AS
SELECT * FROM ticker MATCH_RECOGNIZE (
    PARTITION BY symbol ORDER BY ts MEASURES A.price AS p PATTERN (A B* C) DEFINE C AS C.price > 3
);
