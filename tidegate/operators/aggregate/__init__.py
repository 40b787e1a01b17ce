"""GROUP BY: aggregates, groups, and the operators for windows, sessions and unbounded groups.

Start with `groups`: `Aggregator` pre-aggregates rows, combines partial aggregates and evaluates
results; `WindowPanes` and `OutputLayout` describe windows and output columns. `functions` has a
class for every aggregate function. The operators are `window` (each window is emitted once, when it
closes), `updating` (results are updated while a group is open) and `sessions`; their common parts
are in `group_by`.

May import `operators`, its `kernels` and `store`.
"""
