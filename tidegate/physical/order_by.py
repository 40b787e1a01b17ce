"""ORDER BY of top-N, OVER and MATCH_RECOGNIZE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from tidegate.sql.dialect import to_sql

if TYPE_CHECKING:
    from tidegate.operators.kernels.ordering import Ordering
    from tidegate.physical.typed import Types


def ordered_by(part: exp.Expr) -> str:
    """The SQL of what is ordered by."""
    return to_sql(part.this if isinstance(part, exp.Ordered) else part)


def ordering(part: exp.Expr, types: Types) -> Ordering:
    """Its type, whether it goes downwards, and whether NULLs come first."""
    from tidegate.operators.kernels.ordering import Ordering

    kind = types.of(ordered_by(part))
    if not isinstance(part, exp.Ordered):
        return Ordering(kind)
    descending, first = bool(part.args.get("desc")), part.args.get("nulls_first")
    return Ordering(kind, descending, not descending if first is None else bool(first))
