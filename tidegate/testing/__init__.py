"""`tidegate test`: scripted cases for streaming SQL, run on a real pipeline.

A case is a YAML or JSON file with input rows, epochs, restarts and expected rows. Start reading at
`case`, the content of a file, and `runner`, which runs its epochs on a session. `loader` reads and
validates files, `declare` translates a case to Tidegate SQL, `compare` compares the output with the
expectation, `report` is the command. The package imports the session when a case runs, and never
pyspark.
"""

from tidegate.testing.case import Case, Outcome
from tidegate.testing.loader import load_case
from tidegate.testing.report import main
from tidegate.testing.runner import run_case

__all__ = ["Case", "Outcome", "load_case", "main", "run_case"]
