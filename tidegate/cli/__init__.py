"""The command line: check, explain, run, sql, query, test, init.

`main` holds the commands and their options, `guard` turns exceptions into exit codes, `scripts`
reads and checks files without Spark, `run` and `shell` drive a session. What people see is written
by a *screen*: `plain` when the output is piped, `live` on a terminal.

Modules here are imported when a command needs them, so that `check` and `explain` start fast and
load neither pyspark nor prompt_toolkit. The command line may import everything but pyspark.
"""
