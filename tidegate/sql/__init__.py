"""SQL text to statements.

`dialect` teaches sqlglot our words, `expressions` reads facts off its trees (spans, intervals,
aggregates), `statements` are frozen dataclasses with spans, `parser` turns a script into them and
reports every syntax error it finds. Knows nothing of catalogs, plans or Spark.
"""
