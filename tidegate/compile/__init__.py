"""From the text of a script to declared objects, or to all of its errors.

Start with `compiler`: it parses a script, declares its objects, binds and rewrites its queries and
lets `validate` reject what a stream cannot run. `typing` then asks Spark for the types of the
expressions, when a session declares the objects.

May import `plan`, `physical`, `catalog` and `sql`. Nothing here loads Spark, except `typing` when
it is called.
"""
