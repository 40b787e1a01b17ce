CREATE SOURCE rates (
    currency STRING, rate DOUBLE, ts TIMESTAMP,
    PRIMARY KEY (currency), WATERMARK FOR ts AS ts
) WITH (connector = 'memory');

CREATE STREAM as_it_is AS SELECT currency, rate FROM rates WHERE currency <> 'EUR';

CREATE STREAM strong AS SELECT currency, rate FROM rates WHERE rate > 1;

CREATE STREAM changes AS SELECT currency, rate FROM rates EMIT CHANGES;

CREATE STREAM average AS SELECT avg(rate) AS average FROM rates EMIT CHANGES;
