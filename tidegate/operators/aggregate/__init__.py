"""GROUP BY: aggregates, groups, and the operators for windows, sessions and unbounded groups.

Start with `groups`: `Aggregator` pre-aggregates rows, combines partial aggregates and evaluates
results; `Panes` and `Layout` describe windows and output columns. `functions` has a class for every
aggregate function. The operators are `window` (each window is emitted once, when it closes),
`keyed` (results are updated while a group is open) and `sessions`; their common parts are in
`group_by`.

May import `operators`, its `kernels` and `store`.
"""
