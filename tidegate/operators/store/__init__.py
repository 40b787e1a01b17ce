"""The two layouts in which operators store rows, on top of `KeyGroupState`.

`time_buckets` is a log ordered by event time, for rows that wait for the watermark: windows,
interval joins. `sorted_runs` is a log-structured merge tree ordered by key hash, for state that is
looked up by key: GROUP BY without windows, regular joins, top-N; it also has the time to live of
keys. In both, the cost of an epoch depends on the rows of the epoch and not on the size of the
state. Imports `kernels` and the operator contract.
"""
