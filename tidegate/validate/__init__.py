"""The validator: what a stream would never finish, never emit, or get wrong is refused up front.

One check per file under `checks/`, each a function over a bound plan that yields findings;
`validator` runs them all and returns every finding. It runs once, when a stream is declared:
a valid plan costs nothing at run time. Imports plans, nothing above them.
"""
