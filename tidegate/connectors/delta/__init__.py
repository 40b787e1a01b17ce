"""The delta connector: tables of Delta Lake as source and sink, over deltalake, without a JVM.

Start with `options`, the option specs, and `table`: opening and creating tables, their columns and
the commit marker in the log. Then read `table_source` and `table_sink`, which run on the driver;
`table_tasks` has their reader and writer. The writer stages Parquet files with `files.writer`.

Python workers import `table_tasks`, which must not load the parser. deltalake is imported when it
is first used. Imports `connectors.base`, `connectors.files`, `catalog`, `storage` and `errors`.
"""
