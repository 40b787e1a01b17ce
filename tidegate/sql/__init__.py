"""The parser: from SQL text to statements.

Start with `parser`, which parses a script and reports all its syntax errors. `statements` contains
the statements, `declarations` and `query` parse their parts, `dialect` extends the parser of
sqlglot, and `expressions` computes properties of its trees, such as aggregates and intervals.
Imports neither `catalog`, `plan` nor Spark.
"""
