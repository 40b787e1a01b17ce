"""Spark: the session, types, and the frame of a pipeline with what runs in its tasks.

With the connectors the only importer of pyspark. `spark_session` starts Spark or borrows a session,
`analysis` asks it for types when a stream is declared, `rows` takes rows from Python. On the
driver, `frame` builds one frame for all streams of a pipeline and runs it, `lowering` makes the
stages and operators of one stream of its physical plan, `sources` (with `computed`) makes rows of
what connectors read, `late_rows` of what operators found too late. `order` is what the driver
tells the tasks of an epoch. In tasks, `leaf` reads, `pack` cuts rows by key group, `step` runs an
operator, `staging` hands rows to sinks, `fused` does two of these in one, `sides` is what travels
beside rows, `worker` and `daemon` keep small tasks quick. `python_functions` makes functions of the
user known, which tasks call as `python_call`. `failure` and `advice` make one clear error of what
Spark throws.
"""
