"""The generator source: deterministic rows, computed by Spark from their number.

Start with `generator`, the source, and `options`, its option spec. `nexmark` has the columns of the
NEXMark tables as SQL expressions. Imports `connectors.base`, `catalog` and `columns`; pyspark only
for type checking.
"""
