CREATE SOURCE clicks (
    id BIGINT NOT NULL, page STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM first_by_time WITH (state_ttl = '1 day') AS
SELECT id, page, ts
FROM clicks
QUALIFY row_number() OVER (PARTITION BY id ORDER BY ts) = 1
EMIT ON WINDOW CLOSE LATE DATA TO late_clicks;

CREATE STREAM first_by_arrival WITH (state_ttl = '1 day') AS
SELECT id, page, ts
FROM clicks
QUALIFY row_number() OVER (PARTITION BY id) = 1;

CREATE STREAM first_by_the_clock WITH (state_ttl = '1 day') AS
SELECT id, page, place
FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY PROCTIME()) AS place FROM clicks)
WHERE place = 1;

CREATE STREAM each_moment_once AS
SELECT id, page, ts
FROM clicks
QUALIFY row_number() OVER (PARTITION BY id, ts ORDER BY ts) = 1
EMIT ON WINDOW CLOSE;

CREATE STREAM first_of_each_minute AS
SELECT id, page, window_end
FROM TUMBLE(clicks, ts, INTERVAL '1' MINUTE)
QUALIFY row_number() OVER (PARTITION BY id, window_end) = 1;

CREATE STREAM first_of_each_minute_when_it_is_over AS
SELECT id, page, window_end
FROM TUMBLE(clicks, ts, INTERVAL '1' MINUTE)
QUALIFY row_number() OVER (PARTITION BY id, window_end) = 1
EMIT ON WINDOW CLOSE;

CREATE STREAM last_by_arrival AS
SELECT id, page FROM clicks QUALIFY row_number() OVER (PARTITION BY id ORDER BY PROCTIME() DESC) = 1
EMIT CHANGES;
