"""What is declared: sources, lookup tables, streams and sinks, and the options they may have.

`options` describes and reads options, `connector` is what a connector tells of itself without
Spark, `objects` are the declared things, `declare` turns statements into them, `catalog` keeps
them and their dependencies. Imports the language and nothing above it.
"""
