"""The Spark side of Tidegate: session, types, and the job of an epoch.

With the connectors, this is the only package that imports pyspark. Start reading at `frame`, which
builds one DataFrame for all streams of a pipeline and runs it for each epoch; `lowering` builds the
stages and operators of one stream, `sources` the rows that connectors read, `sharing` combines work
that streams have in common. `tasks` contains the code that runs in Python workers. `session` starts
Spark or borrows a session, `analysis` determines types when a stream is declared, `inserted_rows`
converts inserted rows, `python_functions` registers Python functions and `python_call` calls them,
`daemon` starts workers quickly. `errors` and `diagnostics` translate Spark's exceptions.
"""
