"""What runs: the data directory, and pipelines that cut, run, decide and commit their epochs.

`directory` is the data directory and its lock. `planning` turns declared streams into the members
of a pipeline, `members` holds them against its last manifest: which operators keep their state, and
what is rejected. `pipeline` is the loop; `steps` are the steps of an epoch, at each of which tests
kill it. `cutting` chooses the ranges of an epoch, `frames` keeps the frames that run them, `notes`
sorts out what tasks have told, `decision` makes a manifest of it, `state_files` sweeps. `missed`
and `late_inputs` know who does not have all rows, `counters` are what status shows. Uses `spark`
and the connectors, but never pyspark itself.
"""
