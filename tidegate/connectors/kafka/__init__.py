"""The kafka connector: topics of Apache Kafka as source and sink, over confluent-kafka.

Start with `spec`, the options, and `client`: connections, the translation of errors, and the
metadata of topics. For reading, continue with `source`, which plans input ranges on the driver,
`reader`, which consumes a split in a task, and `decoding`, which turns records into columns. For
writing, read `sink` and `transactions`: tasks write rows to spool files, and after the commit the
driver produces them together with the commit marker in one Kafka transaction. `avro` has the schema
registry and the conversion of Avro in both directions.

Python workers import `reader`, `avro` and `client`, which must load neither the SQL parser nor
pyspark. confluent_kafka and fastavro are imported when they are first used. Imports
`connectors.base`, `connectors.formats`, `connectors.memory` (spool files), `catalog`, `storage`,
`physical.typed`, `operators.kernels`, `sql`, `columns`, `types` and `errors`.
"""
