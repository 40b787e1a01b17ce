CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE without_for (ts TIMESTAMP, WATERMARK ts - INTERVAL '5' SECOND) WITH (connector = 'memory');
CREATE STREAM half AS SELECT price FROM bids EMIT;
CREATE STREAM without_by AS SELECT auction, count(*) AS n FROM bids GROUP auction EMIT CHANGES;
CREATE STREAM top AS SELECT TOP 3 price FROM bids;
CREATE SINK of_a_query FROM (SELECT price FROM bids) WITH (connector = 'console');
CREATE SINK of_another WITH (connector = 'console') AS SELECT price FROM bids;
CREATE STREAM dear AS SELECT price FROM bids;
CREATE SINK screen FROM dear WITH (connector = 'console');
INSERT INTO screen SELECT price FROM bids;
START dear;
CREATE STREAM before_a_view AS SELECT price FROM bids
CREATE MATERIALIZED VIEW v AS SELECT price FROM bids;
