"""Physical plans: everything that an epoch of a stream needs, without Spark.

A *stage* is a sequence of stateless nodes, a *port* is an input of an operator, and an *operator*
keeps state between epochs. Start reading at `planner`, which builds the physical plan of a stream
from a typed logical plan. `stages` divides the plan at its operators; `stage_sql` writes stages as
Spark SQL, `vectorized` translates them to Arrow kernels. Each operator family has a module
(`aggregate`, `join`, `asof`, `top_n`, `over`, `match`, `distinct`, `hold`, `normalize`, `lookup`)
with its plan, rejections, line in `explain` and canonical form; `registry` lists them.
`fingerprint` hashes canonical forms, and `rejections` reports streams that cannot run.
The package imports `plan`, `operators` and the layers below them.
"""
