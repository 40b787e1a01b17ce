"""The public API: a session, its results, subscriptions and queries.

`session.Session` is the object that `tidegate.open` returns; start reading there. `queries` answers
`db.query` and `db.peek`, `subscription` iterates over the epochs of a stream, `results` formats the
answers of statements such as SHOW, `functions` declares Python functions, and `saved_catalog`
stores the declarations of a data directory for the shell. Only the command line, the console and
the test runner import this package; it may import everything except pyspark.
"""
