"""The test kit: scripted cases for streaming SQL, run on a real pipeline.

A case is a JSON or YAML file: rows in, epochs, restarts, rows expected out. `case` holds what a
file says, `loader` reads it and rejects what it does not understand, `declare` turns it into
Tidegate SQL, `epochs` lays out its epochs, `runner` runs them on a session, `changes` adds up what
came out, `compare` says how that differs from what was expected, `report` is `tidegate test`.
Imports the session only when a case runs; never pyspark itself.
"""

from tidegate.testing.case import Case, Outcome
from tidegate.testing.loader import load_case
from tidegate.testing.report import main
from tidegate.testing.runner import run_case

__all__ = ["Case", "Outcome", "load_case", "main", "run_case"]
