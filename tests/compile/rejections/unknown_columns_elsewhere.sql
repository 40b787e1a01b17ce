CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM a AS SELECT * EXCEPT (prise) FROM bids;
CREATE STREAM b AS SELECT x.* FROM bids;
CREATE STREAM c AS SELECT price FROM bids GROUP BY 7 EMIT CHANGES;
CREATE STREAM d AS SELECT price FROM bids;
CREATE SINK e FROM d WITH (connector = 'files', path = 'x', partition_by = 'day');
INSERT INTO bids (auction, prise) VALUES (1, 2);
