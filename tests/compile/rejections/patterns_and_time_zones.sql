CREATE SOURCE bids (price BIGINT, channel STRING, ts TIMESTAMP) WITH (connector = 'memory');

CREATE STREAM a AS SELECT date_format(ts, '%Y-%m-%d %H:%M') AS day FROM bids;
CREATE STREAM b AS SELECT to_timestamp(channel, '%d.%m.%Y %q') AS at FROM bids;
CREATE STREAM c AS SELECT from_utc_timestamp(ts, 'Europe/Berln') AS here FROM bids;
CREATE STREAM d AS SELECT convert_timezone('UTC', 'Amerika/New_York', ts) AS there FROM bids;
CREATE STREAM e AS SELECT convert_timezone('America/NewYork', ts) AS there FROM bids;
