"""ORDER BY and LIMIT that stand by themselves: only input that ends can have them."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from tidegate.plan.nodes.base import Unary
from tidegate.plan.nodes.fields import Field


@dataclass(frozen=True, eq=False)
class Sort(Unary):
    order: tuple[exp.Expr, ...] = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Limit(Unary):
    count: exp.Expr | None = field(kw_only=True)
    offset: exp.Expr | None = field(default=None, kw_only=True)
    # The number of a row in its order, for the top n that an OFFSET cuts.
    rank: Field | None = field(default=None, kw_only=True)
