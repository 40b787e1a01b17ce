"""Joins of two streams, and the results of lookup joins.

Start with `interval` (both sides have times that bound the join) and `regular` (an updating join).
`asof` has temporal and ASOF joins that the watermark makes final, `asof_updating` those whose
results are retracted. `lookup_cache` returns the rows of a lookup table by key.

May import `operators`, its `kernels` and `store`, but no other operator package.
"""
