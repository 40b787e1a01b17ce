CREATE SOURCE a (k BIGINT) WITH (connector = 'files', path = 'x', format = 'json', null_value = 'NA');
CREATE SOURCE b (k BIGINT) WITH (connector = 'files', path = 'x', multi_line = true);
CREATE SOURCE c (k BIGINT) WITH (connector = 'files', path = 'x', format = 'csv', quote = '""');
CREATE SOURCE d (k BIGINT) WITH (connector = 'files', path = 'x', format = 'csv', encoding = 'utf-16');
CREATE SOURCE e (k BIGINT, ts TIMESTAMP) WITH (connector = 'files', path = 'x', format = 'csv', timestamp_format = '%Y-%m-%d');
CREATE SOURCE f (k BIGINT, ts TIMESTAMP) WITH (connector = 'files', path = 'x', format = 'json', timestamp_format = 'YYYY-MM-dd');
CREATE SOURCE g (k BIGINT) WITH (connector = 'files', path = 'x', format = 'csv', encoding = 'klingon');
CREATE STREAM s AS SELECT k FROM b;
CREATE SINK h FROM s WITH (connector = 'files', path = 'x', header = false);
