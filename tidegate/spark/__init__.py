"""Spark: the session, types, source frames, and the queries that run pipelines.

With the Spark side of the connectors, the only importer of pyspark. `spark_session` starts or
borrows a SparkSession, `analysis` asks it for types when a stream is declared, `sources` turns
declared sources into streaming frames, `lowering` makes one frame of a physical plan, `pack` and
`processor` run in its tasks, `pipeline` runs one stream with its sinks, `listener` hears of
progress, `failure` makes one clear error of what Spark throws.
"""
