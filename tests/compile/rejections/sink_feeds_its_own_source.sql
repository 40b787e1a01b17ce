CREATE SOURCE f (id BIGINT) WITH (connector = 'files', path = 'box');
CREATE STREAM copied AS SELECT id FROM f;
CREATE SINK back FROM copied WITH (connector = 'files', path = 'box');
