-- NEXMark q3. Who sells in category 10 in Oregon, Idaho or California?
-- Sellers and auctions meet without a time bound, so a day after its last match a row is forgotten.

CREATE SOURCE person (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'person');

CREATE SOURCE auction (
    WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND
) WITH (connector = 'generator', kind = 'nexmark', table = 'auction');

CREATE STREAM q3 WITH (state_ttl = '1 day') AS
SELECT p.name, p.city, p.state, a.id
FROM auction AS a
JOIN person AS p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA');
