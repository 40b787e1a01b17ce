"""The files connector: directories of Parquet, JSON or CSV files as source, sink and lookup table.

Start with `spec`, the options. Reading: `source` plans ranges of new files and reads Parquet,
`listing` finds new files, `lookup` reads a directory as a lookup table; text records are
decoded by `connectors.formats`. Writing: `writer` stages files in the tasks, `sink` publishes them,
`compaction` merges small files.

Python workers import `source` and `writer`, which must not load the parser. Imports
`connectors.base`, `catalog`, `storage` and `errors`.
"""
