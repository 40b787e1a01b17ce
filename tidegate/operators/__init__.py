"""Stateful operators: pure state machines over Arrow tables. No Spark, no clock, no randomness.

An operator is packed, stepped and unpacked. `lift` runs where the rows are and shrinks them to
partials; `step` runs once an epoch for every key group, on the partials of the epoch and the ticks
that came with them. `accumulators` holds the aggregates, `groups` the kernels that combine them,
`clock` the watermark, `segments` and `keyed` the two shapes in which operators keep state. Imports
`state`, `types` and `errors`.
"""
