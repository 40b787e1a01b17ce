"""The postgres connector: tables of PostgreSQL as source, sink and lookup table, over psycopg.

Start with `spec`, the options, and `client`: connections, the translation of errors, and the
description of tables. Then read `source` with `reader`, or `sink` with `writer`; the first of each
pair runs on the driver, the second in the tasks. `lookup` queries a table by key, and
`column_types` maps Spark types to PostgreSQL types.

Python workers import all modules except `source`, `sink` and `spec`. psycopg is imported when it is
first used. Imports `connectors.base`, `catalog`, `operators.join`, `columns`, `types` and `errors`.
"""
