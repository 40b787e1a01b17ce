"""The systems Tidegate reads from and writes to, one module each.

A module holds the connector's option spec, which needs no Spark, and its Spark side, which imports
pyspark inside its functions only: `tidegate check` loads these modules and must stay fast.
`registry` lists them.
"""
