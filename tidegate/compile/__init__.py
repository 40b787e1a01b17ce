"""The compiler: from the text of a script to declared objects, or to all its errors.

Start with `compiler`: it parses a script, declares its objects, binds and rewrites its queries and
lets `validate` reject queries that cannot run as a stream. `type_analysis` then determines types
with Spark, when a session declares the objects.

May import `plan`, `physical`, `catalog` and `sql`. Nothing here loads Spark, except `type_analysis`
when it is called.
"""
