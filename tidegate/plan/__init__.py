"""Logical plans: what a query means, independent of how it runs.

- `nodes/`: frozen nodes that report their own properties: changelog kind, key, watermark, late
  rows, and what bounds their state
- `bind/`: turns a query and the catalog into a plan; start reading at `binder.bind`
- `rewrite/`: turns a plan into another: first `semantics` (the streaming meaning of SQL), then
  `optimizer` (the same rows with less work)
- `side_streams`: the streams of late rows and dead letters

May import `catalog`, `sql`, `types`, `columns` and `errors`.
"""
