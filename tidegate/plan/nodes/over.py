"""Window functions."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from tidegate.plan.nodes.base import APPEND, Unary, rows_kept
from tidegate.plan.nodes.once import once


@dataclass(frozen=True, eq=False)
class Over(Unary):
    """Window functions: the input's fields, then one field a function."""

    functions: tuple[exp.Expr, ...] = field(kw_only=True)
    ttl_us: int | None = field(default=None, kw_only=True)

    @once
    def state_bound(self) -> str | None:
        if self.ttl_us is None or self.input.changelog is APPEND:
            return "rows until the watermark passes them, and what their frames still need"
        return rows_kept(self, self.ttl_us)

    @property
    def judges_lateness(self) -> bool:
        return True

    @once
    def is_final(self) -> bool:
        return True

    @property
    def needs_watermark(self) -> bool:
        return any(item.closes for item in self.fields)

    @property
    def reads_clock(self) -> bool:
        return self.ttl_us is not None

    @property
    def kept_expressions(self) -> tuple[exp.Expr, ...] | None:
        return self.functions
