"""Binding: a query and the catalog become a logical plan, or errors.

`binder` is the entry point and binds set operations; `select` binds one SELECT, clause by clause,
with `tables` (FROM), `joins`, `windows`, `group_by`, `subqueries` and `match` (MATCH_RECOGNIZE).
`resolve` turns names in expressions into column ids within a `scope`; `functions` inlines calls of
user-defined functions; `declarations` binds CREATE FUNCTION and computed columns. All errors are
reported to `scope.BindingContext`, so one run finds as many as possible.

May import `plan.nodes`, `catalog` and `sql`.
"""
