CREATE SOURCE posts (
    id BIGINT, author STRUCT<name: STRING, age: INT>, tags ARRAY<STRING>, ms BIGINT,
    ts AS timestamp_millis(ms), WATERMARK FOR ts AS ts - INTERVAL '1' MINUTE
) WITH (connector = 'memory');

CREATE STREAM by_ordinal AS
SELECT author.name, count(*) AS n FROM posts GROUP BY 1 EMIT CHANGES;

CREATE STREAM by_alias AS
SELECT upper(author.name) AS who, author.age + 1 AS next_age, next_age * 2 AS twice, count(*) AS n
FROM posts
GROUP BY who, author.age
HAVING n > 1
EMIT CHANGES;

CREATE STREAM by_event_time AS
SELECT ts, count(*) AS n FROM posts GROUP BY ts EMIT ON WINDOW CLOSE;
