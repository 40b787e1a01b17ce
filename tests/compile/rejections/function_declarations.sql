CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE FUNCTION upper(x STRING) RETURNS STRING RETURN lower(x);
CREATE FUNCTION tumble(x STRING) RETURNS STRING RETURN lower(x);
CREATE FUNCTION bids(x BIGINT) RETURN x + 1;
CREATE FUNCTION `my function`(x BIGINT) RETURN x + 1;
CREATE FUNCTION case(x BIGINT) RETURN x + 1;
CREATE FUNCTION idle(x BIGINT, y BIGINT) RETURN x + 1;
CREATE FUNCTION of_a_column(x BIGINT) RETURN x + price;
CREATE FUNCTION summed(x BIGINT) RETURN sum(x);
CREATE FUNCTION counted(x BIGINT) RETURN (SELECT count(*) FROM bids WHERE price = x);
CREATE FUNCTION faculty(x BIGINT) RETURN x * faculty(x - 1);
CREATE FUNCTION ping(x BIGINT) RETURN pong(x);
CREATE FUNCTION pong(x BIGINT) RETURN ping(x);
CREATE FUNCTION broken(x BIGINT) RETURN nothing_like_it(x);
CREATE STREAM not_blamed AS SELECT broken(price) AS f, pong(price) AS g FROM bids;
