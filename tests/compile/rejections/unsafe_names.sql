CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM `../../x` AS SELECT price FROM bids;
CREATE STREAM `_sources` AS SELECT price FROM bids;
CREATE STREAM `spark.log` AS SELECT price FROM bids;
CREATE SOURCE `.hidden` (id BIGINT) WITH (connector = 'memory');
CREATE SOURCE a (id BIGINT) WITH (connector = 'files', path = 'in', dead_letters = '../bad');
CREATE STREAM b AS SELECT count(*) AS n FROM bids GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE)
    EMIT ON WINDOW CLOSE LATE DATA TO `late/rows`;
CREATE STREAM c AS SELECT price FROM bids;
CREATE SINK `out\put` FROM c WITH (connector = 'console');
CREATE LOOKUP TABLE `a:b` (id BIGINT, PRIMARY KEY (id)) WITH (connector = 'memory');
CREATE STREAM aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa AS
    SELECT price FROM bids;
CREATE STREAM d AS SELECT * FROM `../../x`;
