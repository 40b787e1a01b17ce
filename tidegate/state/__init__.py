"""State that operators keep between epochs, and its encoding as bytes.

`state_file` is what pipelines use, and where to start reading: `StateBackend` is the contract for
the state of one operator in one key group, `StateFileBackend` implements it with immutable files,
and a `StateHandle` in the manifest refers to it. `codec` serializes the Arrow tables that operators
store, and computes fingerprints.

Pipelines do not use the other two modules yet. `keyed_state` has value, list, map and reducing
state per user key, with order-preserving keys, for process functions that handle keys one by one.
`memory` is a backend in memory, which tests and benchmarks use.

Nothing is pickled. The package imports `storage` and `errors`, neither Spark nor operators.
"""
