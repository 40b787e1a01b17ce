CREATE SOURCE cities (name STRING, state STRING, pop INT, tags ARRAY<STRING>) WITH (connector = 'memory');
CREATE STREAM largest AS
SELECT s.state, c.name FROM (SELECT DISTINCT state FROM cities) AS s,
    LATERAL (SELECT name FROM cities WHERE state = s.state ORDER BY pop DESC LIMIT 3) AS c
EMIT CHANGES;
CREATE STREAM tagged AS SELECT state, tag FROM cities CROSS JOIN UNNEST(tags) AS t(tag);
