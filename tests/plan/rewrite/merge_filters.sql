CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, tags ARRAY<STRING>,
    ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM two AS
SELECT auction FROM bids JOIN bids AS other USING (auction)
WHERE bids.price < other.price AND bids.channel = 'web' AND bids.ts = other.ts;

-- A cast may fail on what the inner condition keeps away, also where that is NULL.
CREATE STREAM guarded AS
SELECT auction FROM bids JOIN bids AS other USING (auction)
WHERE bids.price < other.price AND bids.ts = other.ts AND CAST(bids.channel AS INT) > 100;

CREATE STREAM random AS
SELECT auction FROM bids JOIN bids AS other USING (auction)
WHERE bids.price < other.price AND bids.ts = other.ts AND rand() < 0.5;
