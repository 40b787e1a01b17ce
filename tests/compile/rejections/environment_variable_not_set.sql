CREATE SOURCE s (k BIGINT)
WITH (connector = 'files', path = '${TIDEGATE_TEST_NOT_SET}/in');
