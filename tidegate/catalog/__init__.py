"""Declared objects, sources, streams, sinks, lookup tables and functions, and their options.

Start reading at `objects`, the declared objects, and `catalog`, which stores them with their
dependencies. `declare` builds objects from statements, `options` specifies and reads options,
`connector` describes the capabilities of a connector without Spark, `settings` contains the
settings of a session, and `python_functions` loads Python functions. `commands`
checks statements that declare nothing, such as INSERT and RESTORE. Imports `sql` and the layers
below it.
"""
