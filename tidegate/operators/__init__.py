"""Stateful operators: pure state machines over Arrow tables. No Spark, no clock, no randomness.

An operator is packed, stepped and unpacked. `lift` runs where the rows are and shrinks them to
partials; `step` runs once per epoch for every key group, on the partials of the epoch and the ticks
that came with them. `accumulators` holds the aggregates, `keys` says which values are equal,
`group_kernels` combines groups, `clock` has the watermark, `segments` and `runs` are the two
shapes in which operators keep state: by time and by hash of the key. Imports `state`, `columns`,
`types` and `errors`.
"""
