"""The systems Tidegate reads from and writes to, one module each.

`protocols` says what they offer: a source cuts ranges and has tasks read them, a sink has tasks
stage rows and commits their tokens. A module holds the connector's option spec, which needs no
Spark; what needs pyspark imports it inside of functions, because `tidegate check` loads these
modules and must stay fast. What is more than a module has others beside it: `files_source`,
`files_sink`, `listing`, `nexmark_events`. What Python workers import is kept apart and loads no
parser: `parquet_rows`, `text_lines` and all whose name ends in `_tasks`. `registry` lists them all.
"""
