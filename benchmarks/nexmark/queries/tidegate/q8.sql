-- NEXMark q8. Who opened an auction within 10 seconds of signing up?

CREATE SOURCE person (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'person');

CREATE SOURCE auction (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'auction');

CREATE STREAM q8 AS
SELECT p.id, p.name, p.window_start AS starttime
FROM (
    SELECT id, name, window_start, window_end
    FROM person
    GROUP BY id, name, TUMBLE(date_time, INTERVAL '10' SECOND)
) AS p
JOIN (
    SELECT seller, window_start, window_end
    FROM auction
    GROUP BY seller, TUMBLE(date_time, INTERVAL '10' SECOND)
) AS a
    ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end
EMIT ON WINDOW CLOSE;
