"""Logical plans: what a query means, before anyone asks how to run it.

`nodes` are frozen and carry their output fields; `binder` (with `scope`, `select`, `joins`,
`windows`) builds them from a query and the catalog; `rules` are functions plan → plan applied in a
fixed order; `properties` reads off a plan what it promises: boundedness, watermark, changelog
kind, key and what bounds its state. Imports the catalog and the language.
"""
