"""The loop that runs streams: pipelines, their epochs, and the data directory.

Start reading at `pipeline`: it plans the input of an epoch, runs the job, commits the manifest,
publishes to the sinks, and sweeps. `epoch` has the parts of one epoch: its plan, the epoch spec for
the tasks, their combined reports, and the manifest that follows. `reconciliation` compares the
declared streams with the last manifest when a pipeline starts or changes. `graphs` builds and
caches the job graphs, and `executor` is the interface that runs them, with an executor that needs
no Spark. `retry` retries operations on unavailable systems.

`supervisor` decides which streams of a session run, and starts and stops their pipelines;
`planning` plans these streams. `directory` is the data directory with its lock, and checks paths on
a cluster; `cleanup` deletes unneeded files, and `status` has the counters that users see. The
package imports `spark` and the connectors, but never
pyspark itself.
"""
