"""The life of a pipeline: where its data lives, how it starts, stops, fails and is watched.

`connector` is what the Spark side of a connector must offer, `directory` is the data directory and
its lock, `record` remembers what a pipeline read, `status` is what a pipeline tells about itself,
`engine` the protocol of whatever runs pipelines. Knows no Spark.
"""
