-- What a connector tells of a record is known, and has a type.
CREATE SOURCE a (v STRING, at TIMESTAMP METADATA FROM 'time') WITH (connector = 'kafka', topic = 't', brokers = 'b:9092');
CREATE SOURCE b (v STRING, offset INT METADATA) WITH (connector = 'kafka', topic = 't', brokers = 'b:9092');
CREATE SOURCE c (v STRING, part INT METADATA FROM 'partition') WITH (connector = 'memory');
CREATE SOURCE e (path STRING METADATA) WITH (connector = 'files', path = 'in');
CREATE LOOKUP TABLE d (id BIGINT, at TIMESTAMP METADATA, PRIMARY KEY (id)) WITH (connector = 'postgres', database = 'x', table = 'y');
