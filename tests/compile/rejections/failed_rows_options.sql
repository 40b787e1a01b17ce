CREATE SOURCE s (id BIGINT, word STRING) WITH (connector = 'memory');
CREATE STREAM numbers WITH (on_error = 'dead_letter', dead_letters = 'bad') AS SELECT id, CAST(word AS INT) AS n FROM s;
CREATE STREAM large AS SELECT n FROM numbers WHERE n > 10;
CREATE STREAM named WITH (dead_letters = 'worse') AS SELECT id FROM s;
CREATE STREAM letters AS SELECT record FROM bad;
