"""Batch queries over the stored rows of streams and materialized views.

`engine` runs a SELECT in DuckDB; start reading at `run_query`. `snapshot` reads the rows of all
tables of a query as of one epoch, from any process and without a lock. Nothing here loads Spark;
the package may import `runtime` and everything below it.
"""
