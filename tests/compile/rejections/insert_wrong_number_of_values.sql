CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH (connector = 'memory');

INSERT INTO asks VALUES (1, 2, 3, now()), (1, 2, 3);
INSERT INTO asks (auction, price) VALUES (1, 2, 3);
