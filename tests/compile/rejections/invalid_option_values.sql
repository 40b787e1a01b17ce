CREATE SOURCE a (k BIGINT) WITH (connector = 'files', path = 'x', bounded = 'maybe');
CREATE SOURCE b (k BIGINT) WITH (connector = 'files', path = 'x', format = 'xlsx');
CREATE SOURCE c (k BIGINT) WITH (connector = 'files', path = 'x', files_per_epoch = 0);
CREATE SOURCE d (k BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'memory', idle_timeout = '5 parsecs');
SET validator = 'sometimes';
