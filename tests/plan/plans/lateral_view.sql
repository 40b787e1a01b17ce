CREATE SOURCE posts (
    id BIGINT, author STRUCT<name: STRING, age: INT>, tags ARRAY<STRING>, ms BIGINT,
    ts AS timestamp_millis(ms), WATERMARK FOR ts AS ts - INTERVAL '1' MINUTE
) WITH (connector = 'memory');

CREATE STREAM tagged AS
SELECT id, author.name AS who, position, tag, ts
FROM posts LATERAL VIEW OUTER posexplode(tags) t AS position, tag;

CREATE STREAM per_tag AS
SELECT tag, window_end, count(*) AS n
FROM posts LATERAL VIEW explode(tags) t AS tag
GROUP BY tag, TUMBLE(ts, INTERVAL '5' MINUTE);
