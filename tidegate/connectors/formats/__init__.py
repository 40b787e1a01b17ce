"""Decoding of JSON and CSV records, for connectors that read text.

`spark_text` is the complete implementation: it parses records with Spark's from_json and from_csv
and reports why a record is malformed. `json` and `csv` decode records in the task with Arrow, but
only those that Spark would decode in the same way. They raise `RecordFailed` for all others, and
the pipeline leaves the epoch to Spark. Start with `lines`, which reads files in tasks.

Python workers import `json`, `csv` and `lines`, which must not load the parser. Imports `columns`,
`operators`, `storage` and, in `spark_text`, `sql`.
"""
