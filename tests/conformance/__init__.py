"""Conformance cases from the public test suites of other stream processors.

The cases are not part of this repository. `$TIDEGATE_CONFORMANCE_DIR` names the directory that
contains them; by default it is `../shared/conformance` beside the checkout. `cases` finds the case
files and translates them to the format of `tidegate test`, `sessions` adapts the output, and
tests/spark/test_conformance.py runs the cases on Spark.
"""
