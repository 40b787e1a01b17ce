CREATE SOURCE clicks (id BIGINT, page STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND)
    WITH (connector = 'memory');

-- The first rows by event time are final when the watermark has passed them: they are numbered along it.
CREATE STREAM first_two AS
SELECT id, page, ts FROM clicks
QUALIFY row_number() OVER (PARTITION BY id ORDER BY ts) <= 2
EMIT ON WINDOW CLOSE;

CREATE STREAM first_ranks AS
SELECT id, page, ts, r FROM (SELECT *, rank() OVER (PARTITION BY id ORDER BY ts) AS r FROM clicks) AS c
WHERE r < 3 AND page <> 'home'
EMIT ON WINDOW CLOSE;

CREATE STREAM first_of_all AS
SELECT page, ts FROM (SELECT * FROM clicks ORDER BY ts LIMIT 3 OFFSET 1) AS c EMIT ON WINDOW CLOSE;

-- By anything else a later row may take the place of an earlier one.
CREATE STREAM last_two AS
SELECT id, page, ts FROM clicks QUALIFY row_number() OVER (PARTITION BY id ORDER BY ts DESC) <= 2;
