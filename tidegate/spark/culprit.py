"""The expression on which a job failed, and the row: the epoch is looked at once more for it."""

from __future__ import annotations

from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from sqlglot import exp

from tidegate.physical.suspects import Suspect, suspects
from tidegate.spark.advice import advice
from tidegate.spark.failure import JobFailed
from tidegate.spark.frame import FrameContext, FramedStream, lowering_context
from tidegate.spark.lowering import lower_stage

# A row is shown up to here.
_SHOWN = 500


@dataclass(frozen=True)
class Culprit:
    """What failed: an expression in the text of a stream, and the row as JSON if it was found."""

    stream: str
    expression: exp.Expr
    row: str | None


def culprit(context: FrameContext, stream: FramedStream, failed: JobFailed) -> Culprit | None:
    """Look for what failed; None where Spark does not tell."""
    fragment = _fragment(failed.error)
    found = list(suspects(stream.plan, fragment)) if fragment is not None else []
    for suspect in found:
        row = _row(context, stream, suspect)
        if row is not None:
            return Culprit(suspect.stream, suspect.expression, row)
    if len(found) == 1:
        return Culprit(found[0].stream, found[0].expression, None)
    return None


def _fragment(error: BaseException) -> str | None:
    """The SQL that failed, in the words of a stage."""
    if not isinstance(error, PySparkException) or advice(error) is None:
        return None
    return next((str(part.fragment()) for part in error.getQueryContext() if part.fragment()), None)


def _row(context: FrameContext, stream: FramedStream, suspect: Suspect) -> str | None:
    try:
        lowering = lowering_context(context, stream)
        frame = lower_stage(stream.plan, lowering, suspect.sql, suspect.leaves)
        rows = frame.collect()
    except (PySparkException, Py4JError):
        # Not every row can be shown, and another expression may fail before this one.
        return None
    shown = str(rows[0]["row"]) if rows else None
    return shown if shown is None or len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
