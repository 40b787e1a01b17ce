CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE SOURCE asks (
    auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH (connector = 'memory');

CREATE STREAM a AS SELECT prise FROM bids;
CREATE STREAM b AS SELECT * FROM a;
CREATE STREAM c AS SELECT FROM WHERE;
CREATE SOURCE d (k BIGINT) WITH (connector = 'kafak');
CREATE STREAM e AS SELECT b.price FROM bids AS b JOIN asks AS a ON a.auction = b.auction;
CREATE STREAM f AS SELECT nope(price) AS x FROM bids ORDER BY x;
SET speed = 'high';
