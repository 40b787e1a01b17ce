"""Code that runs in Spark's Python workers.

`read` reads splits, `shuffle` pre-aggregates rows and partitions them by key group, `step` runs
operators, `sink_write` stages rows for sinks, `lookup_join` reads lookup tables, and `late_rows`
turns late rows and dead letters into rows. `protocol` contains the epoch spec that the driver
writes for tasks, and the control messages that travel next to rows; start reading there. These
modules must not import the parser, because workers start often.
"""
