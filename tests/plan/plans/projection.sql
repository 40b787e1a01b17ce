CREATE SOURCE posts (
    id BIGINT, author STRUCT<name: STRING, age: INT>, tags ARRAY<STRING>, ms BIGINT,
    ts AS timestamp_millis(ms), WATERMARK FOR ts AS ts - INTERVAL '1' MINUTE
) WITH (connector = 'memory');

CREATE STREAM shaped AS
SELECT
    id, author.name, `author`.age AS age,
    CASE WHEN size(tags) > 3 THEN 'many' ELSE 'few' END AS how_many,
    transform(tags, t -> lower(t)) AS tags,
    'it''s' AS quoted,
    INTERVAL '1' DAY AS day,
    current_timestamp() AS seen
FROM posts
WHERE NOT (id % 10 = 0 OR author.name LIKE 'bot%') AND ts >= TIMESTAMP '2020-01-01 00:00:00';

CREATE STREAM all_but AS SELECT p.* EXCEPT (tags, ms) FROM posts AS p;
