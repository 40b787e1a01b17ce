CREATE SOURCE bids (
    auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE FUNCTION a(x BIGINT) RETURNS BIGINT LANGUAGE PYTHON AS 'no_module_of_that_name:f';
CREATE FUNCTION b(x BIGINT) RETURNS BIGINT LANGUAGE PYTHON AS 'textwrap:no_function';
CREATE FUNCTION c(x BIGINT) RETURNS BIGINT LANGUAGE PYTHON AS 'textwrap:dedent.nothing';
CREATE FUNCTION d(x STRING) LANGUAGE PYTHON AS 'textwrap:dedent';
CREATE FUNCTION two(x STRING, y STRING) RETURNS STRING LANGUAGE PYTHON AS 'textwrap:dedent';
CREATE FUNCTION f(x STRING) RETURNS STRING LANGUAGE PYTHON WITH (scaler = true) AS 'textwrap:dedent';
CREATE FUNCTION g() RETURNS STRING LANGUAGE PYTHON AS 'textwrap:dedent';
CREATE FUNCTION unsure(x STRING) RETURNS STRING LANGUAGE PYTHON WITH (scalar = true, deterministic = false) AS 'textwrap:dedent';
CREATE STREAM in_keys AS SELECT unsure(channel) AS c, count(*) AS n FROM bids GROUP BY unsure(channel) EMIT CHANGES;
CREATE SOURCE computed (a STRING, b AS unsure(a)) WITH (connector = 'memory');
