CREATE SOURCE rates (
    currency STRING, rate DOUBLE, ts TIMESTAMP,
    PRIMARY KEY (currency), WATERMARK FOR ts AS ts
) WITH (connector = 'memory');

CREATE STREAM latest AS SELECT currency, rate FROM rates;
CREATE SINK out FROM latest WITH (connector = 'files', path = '/data/out');
