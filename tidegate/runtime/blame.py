"""Errors of a pipeline that say which expression failed, where the user wrote it, on which row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from tidegate.catalog.objects import Origin
from tidegate.errors import Place, TidegateError
from tidegate.plan.bind.functions import CALLED
from tidegate.sql.dialect import DIALECT, own_span
from tidegate.sql.expressions import call_name

if TYPE_CHECKING:
    from tidegate.spark.culprit import Culprit

OriginOf = Callable[[str], Origin | None]


def with_culprit(error: TidegateError, culprit: Culprit, origin_of: OriginOf) -> TidegateError:
    """The same error with the row in its message, and its place."""
    row = f", in the row {culprit.row}" if culprit.row is not None else ""
    place = _place(culprit.expression, origin_of(culprit.stream))
    return type(error)(error.code, error.message + row, place=place, hint=error.hint)


def _place(expression: exp.Expr, origin: Origin | None) -> Place | None:
    """Where an expression stands in a text, or the least one around it whose place is known."""
    found: exp.Expr | None = expression
    while found is not None and origin is not None:
        span = own_span(found)
        if span is not None and _stands_there(found, origin.text[span.start : span.end]):
            return Place(origin.text, span.start, span.end, origin.file)
        found = found.parent
    return None


def _stands_there(expression: exp.Expr, text: str) -> bool:
    """Whether a text is an expression of a plan as it was written, and not something else."""
    try:
        written = parse_one(text, dialect=DIALECT)
    except SqlglotError:
        return False
    function = expression.meta.get(CALLED)
    if function is not None:
        return call_name(written) == str(function).upper()
    return _fits(expression, written)


def _fits(planned: Any, written: Any) -> bool:
    """Whether two trees are the same, but for columns: those of a plan may stand for anything."""
    if isinstance(planned, exp.Column):
        return isinstance(written, exp.Expr)
    if isinstance(planned, list) and isinstance(written, list):
        same = len(planned) == len(written)
        return same and all(_fits(p, w) for p, w in zip(planned, written, strict=True))
    if not isinstance(planned, exp.Expr) or type(planned) is not type(written):
        return bool(planned == written)
    names = {name for name, value in (*planned.args.items(), *written.args.items()) if value}
    return all(_fits(planned.args.get(name), written.args.get(name)) for name in names)
