"""The physical plan: everything that an epoch of a stream needs, complete and without Spark.

A *stage* is a stateless run of Spark SQL, a *port* an input of an operator, an *operator* keeps
state between epochs. `stages` cuts a logical plan into them; `typed` holds the types that Spark
found when the stream was declared; `plan` puts everything together. Each operator has a module of
its own (`aggregate`, `distinct`, `hold`, `join`, `normalize`, `top_n`, and `unbuilt` for those
that cannot run yet) with its plan, its rejections, its line in `explain` and what its state means;
`registry` lists them. `stage_sql` and `ticked_sql` print the SQL of stages, `fingerprint` says what
stored state means (in the words of `meaning`), `rejections` rejects what cannot run.
Imports plans, the validator and the operators.
"""
