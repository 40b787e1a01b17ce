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

CREATE STREAM by_all AS
SELECT *, length(tag) AS letters, letters + count(*) AS n
FROM (SELECT author.name, tag FROM posts LATERAL VIEW explode(tags) t AS tag)
GROUP BY ALL
EMIT ON UPDATE;

CREATE STREAM all_of_none AS SELECT count(*) AS n, avg(author.age) AS age FROM posts GROUP BY ALL EMIT CHANGES;

CREATE STREAM by_all_and_window AS
SELECT window_end, author.name, 7 AS seven, count(*) AS n
FROM TUMBLE(posts, ts, INTERVAL '1' MINUTE) GROUP BY ALL;
