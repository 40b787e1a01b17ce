"""Stateful operators: pure state machines over Arrow tables. No Spark, no clock, no randomness.

Start with `operator` (the contract) and `runner` (one epoch of one key group). The task that reads
a source or runs the operator upstream calls `pre_aggregate`, which reduces rows before the shuffle.
Then `step` runs once per epoch for every key group, on the shuffled rows and the epoch's progress
of the watermark.

- `aggregate/`: GROUP BY over windows, sessions and keys, and the aggregate functions
- `join/`: interval, regular and ASOF joins, and the results of lookup joins
- `over/`, `top_n/`, `match/`: OVER, top-N with deduplication, MATCH_RECOGNIZE
- `hold` and `normalize`: EMIT ON WINDOW CLOSE for rows, upserts to a changelog
- `watermark` and `late_rows`: event time
- `store/`: the two state stores, by time and by hash of the key
- `kernels/`: equality, hashing, ordering and matching of rows; `vectorized` has the kernels of
  stateless expressions

May import `state`, `columns`, `types` and `errors`.
"""
