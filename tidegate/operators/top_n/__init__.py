"""Top-N and deduplication: the first rows of partitions.

Start with `window`, which emits the first rows of each window once and has the ranking that all
operators here share. `updating` emits a changelog instead, and `dedup` emits the first row of each
key and drops duplicates. `over.partitions` uses `window` and `updating` for whole partitions.

May import `operators`, its `kernels` and `store`.
"""
