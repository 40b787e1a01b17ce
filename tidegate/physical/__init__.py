"""Physical plans: everything that an epoch of a stream needs, without Spark.

A *stage* is a sequence of stateless nodes, a *port* is an input of an operator, and an *operator*
keeps state between epochs. Start reading at `operator_kind`, the interface of an operator family,
and at `planner`, which builds the physical plan of a stream from a typed logical plan.
`graph_builder` compiles the plans of all streams of a pipeline into a `job_graph`. `stages`
divides the plan at its operators and lookups, and finds calls of user functions; `stage_sql` writes
stages as Spark SQL, `vectorized` translates them to Arrow kernels. Each operator family has a
module (`aggregate`, `join`, `asof`, `top_n`, `over`, `match` with `match_conditions`, `distinct`,
`hold`, `normalize`) with its plan, rejections, line in `explain` and canonical form; `registry`
lists them. `lookup` plans lookup joins, `expressions` aggregate calls and ORDER BY.
`canonical_form` writes what a plan means as a text, from which fingerprints are computed, and
`rejections` reports streams that cannot run. The package imports `plan`, `operators` and the layers
below them.
"""
