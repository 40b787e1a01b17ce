CREATE SOURCE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
    WITH (connector = 'memory');
CREATE STREAM numbered_backwards WITH (state_ttl = '1 day') AS
SELECT auction, row_number() OVER (PARTITION BY auction ORDER BY PROCTIME() DESC) AS n FROM bids EMIT CHANGES;
CREATE STREAM sum_backwards WITH (state_ttl = '1 day') AS
SELECT auction, sum(price) OVER (PARTITION BY auction ORDER BY PROCTIME() DESC) AS n FROM bids EMIT CHANGES;
CREATE STREAM last_minute WITH (state_ttl = '1 day') AS
SELECT auction, sum(price) OVER (ORDER BY PROCTIME() RANGE INTERVAL '1' MINUTE PRECEDING) AS n FROM bids EMIT CHANGES;
