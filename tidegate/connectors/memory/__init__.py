"""The memory connector: rows from and to the Python process.

Start with `connector`: the option spec, the source that reads inserted rows, the sink whose
epochs subscribers read. `rows` has the reader and the writer that run in tasks; `table` is the
lookup table. Rows are Arrow files in the data directory. Imports `connectors.base`, `catalog`,
`storage` and `errors`; `rows` is imported by Python workers and must not load the parser.
"""
