CREATE SOURCE clicks (
    id BIGINT NOT NULL, page STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM first_by_arrival AS
SELECT id, page FROM clicks
QUALIFY row_number() OVER (PARTITION BY id) = 1;
