CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH (connector = 'memory');

CREATE STREAM a AS SELECT auction FROM bids INTERSECT SELECT auction FROM asks;
CREATE STREAM b AS SELECT auction, ts FROM bids EXCEPT ALL SELECT auction, ts + INTERVAL '1' SECOND FROM asks;
CREATE STREAM c AS SELECT auction, ts FROM bids EXCEPT SELECT auction, ts FROM asks LATE DATA TO late_rows;
