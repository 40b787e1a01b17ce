"""State that operators keep between epochs, and its encoding as bytes.

`state_file` is what pipelines use, and where to start reading: `StateBackend` is the contract for
the state of one operator in one key group, `FileBackend` implements it with immutable files, and a
`StateHandle` in the manifest refers to it. `codec` serializes Arrow tables and computes
fingerprints; operators of queries store tables. `keyed_state` has value, list, map and reducing
state per user key, with order-preserving keys, for code that handles keys one by one. `memory` is a
backend in memory, for tests.

Nothing is pickled. The package imports `storage` and `errors`, neither Spark nor operators.
"""
