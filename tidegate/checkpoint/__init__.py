"""Manifests: the commit records of epochs, and checkpoints, which are manifests that are kept.

`manifest` is the content of one: offsets, state handles, committables, counters. Start reading
there. `manifests` stores the manifests of a pipeline and the names of checkpoints; creating the
next manifest commits an epoch, and only one process can create it. `checkpoints` implements
CHECKPOINT and RESTORE for all pipelines of a data directory. The package imports `storage` and
`errors`, and not Spark.
"""
