CREATE SOURCE clicks (
    id BIGINT, page STRING user_id BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts
) WITH ('connector' = 'memory');
CREATE SOURCE orders (id BIGINT, page STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'memory');

CREATE STREAM views AS SELECT page, count(*) AS n FROM clicks GROUP BY page, TUMBLE(ts, '1 minute');
CREATE STREAM pages AS SELECT group_concat(page) AS pages FROM orders GROUP BY id, TUMBLE(ts, '1 minute');
CREATE STREAM known AS SELECT id FROM orders WHERE page <> NULL;
CREATE STREAM named AS SELECT "page" AS p, count(*) AS n FROM orders GROUP BY "page" EMIT CHANGES
CREATE STREAM again AS SELECT * FROM named;
CREATE STREAM last AS SELECT * FROM again JOIN views ON again.p = views.page;
CREATE SINK out FROM known WITH (connector = 'consol');
