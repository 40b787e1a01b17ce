CREATE SOURCE s (k BIGINT) WITH (connector = 'memory', dead_letters = 'bad');
DROP STREAM bad;
