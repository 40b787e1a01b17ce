CREATE SOURCE bids (auction BIGINT, bidder BIGINT, ts TIMESTAMP) WITH (connector = 'memory');
CREATE STREAM one AS SELECT count(*) AS n FROM bids EMIT CHANGES;
CREATE SINK one_out FROM one WITH (connector = 'postgres', database = 'd', table = 't');
CREATE STREAM two WITH (state_ttl = '1 day') AS SELECT a.ts, b.bidder FROM bids AS a LEFT JOIN bids AS b ON a.auction = b.bidder EMIT CHANGES;
CREATE SINK two_out FROM two WITH (connector = 'postgres', database = 'd', table = 'u');
