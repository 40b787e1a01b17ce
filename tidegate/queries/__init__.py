"""Batch queries over what streams have given out so far.

`readable` says which streams keep their rows and what these mean, `snapshot` reads them as of one
epoch, from any process and without a lock, `engine` lets DuckDB answer, `result` is what people
get. Nothing here loads Spark.
"""
