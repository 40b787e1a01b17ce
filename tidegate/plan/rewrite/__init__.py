"""Rewriting: rules that turn a logical plan into another plan.

`semantics` gives a bound plan its streaming meaning: top-N instead of rank filters, versions for
temporal joins, changelogs instead of upserts, rows held for EMIT ON WINDOW CLOSE. Validation sees
its result. `optimizer` then applies rules that keep the rows and reduce the work, which are in
`pushdown_filters` and `projections`; `expressions` decides what may move.

May import `plan.nodes`, `plan.bind`, `plan.side_streams`, `catalog.settings` and `sql`.
"""
