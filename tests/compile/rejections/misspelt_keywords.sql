CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM a AS SELEC price FROM bids;
CREATE STREAM b AS SELECT price FORM bids;
CREATE STREAM c AS SELECT price FROM bids WERE price > 3;
CREATE STREAM d AS SELECT auction, count(*) AS n FROM bids GRUOP BY auction EMIT CHANGES;
CREAT STREAM e AS SELECT price FROM bids;
CREATE STRAEM f AS SELECT price FROM bids;
