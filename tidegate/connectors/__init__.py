"""The systems that Tidegate reads from and writes to, one package per system.

Start with `base`, the contracts of sources, sinks and lookup tables, and `registry`, which lists
all connectors and opens them. Then read one package, for example `files/`: `spec` (or `options`)
declares the options, `source` and `sink` run on the driver, and `writer` runs in the tasks. Other
packages also have a `reader` for the tasks.
`formats/` decodes text records for several connectors.

The sinks `debug_sinks` (console and blackhole) and `view` (materialized views) are single modules.
Several connectors share `table_lookup`, `changelog_compaction` and `common_options`.

`tidegate check` imports the option specs, so they must not import pyspark; modules import it inside
functions or for type checking only. Python workers import the readers and writers, so these must
not import the SQL parser. May import everything below `compile`, except `spark`.
"""
