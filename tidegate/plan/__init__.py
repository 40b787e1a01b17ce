"""Logical plans: what a query means, before anyone asks how to run it.

`nodes` are frozen, carry their output fields, and answer for themselves what they promise (whether
their rows end, watermark, changelog kind, key, what bounds their state) and what time means to
them; `binder` (with `scope`, `select`, `joins`, `windows`) builds them from a query and a catalog;
`rules` are functions plan → plan applied in a fixed order; `late` finds the nodes that judge
lateness. Imports the catalog and the language.
"""
