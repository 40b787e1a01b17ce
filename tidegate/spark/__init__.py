"""The Spark side of Tidegate: session, types, and the job of an epoch.

With the connectors, this is the only package that imports pyspark. Start reading at `executor`,
which turns a job graph into one DataFrame and runs it for each epoch; `sql_stages` builds the
stages that need Spark SQL, `sources` the rows that connectors read. `tasks` contains the code that
runs in Python workers. `session` starts Spark or borrows a session, `analysis` determines types
when a stream is declared, `inserted_rows` converts inserted rows, `python_functions` registers and
calls Python functions, `daemon` starts workers quickly. `errors` and `diagnostics` translate
Spark's exceptions.
"""
