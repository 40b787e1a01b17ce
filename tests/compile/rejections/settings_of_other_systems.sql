SET timezone = 'Europe/Berlin';
SET TIME ZONE 'Europe/Berlin';
SET spark.sql.session.timeZone = 'Europe/Berlin';
SET 'spark.sql.shuffle.partitions' = '4';
