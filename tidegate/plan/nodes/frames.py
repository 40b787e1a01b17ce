"""What a function with OVER looks at: its order, its frame, and how far that reaches."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from tidegate.sql import expressions as ex

# Functions that depend on how many rows a partition has.
OF_WHOLE_PARTITIONS = frozenset({"NTILE", "PERCENT_RANK", "CUME_DIST"})
NO_FRAME = ex.RANK_FUNCTIONS | OF_WHOLE_PARTITIONS | {"LAG", "LEAD"}


@dataclass(frozen=True)
class Bound:
    """An end of a frame, relative to the current row: `value` rows, numbers or microseconds on.

    None is without bound. `known` is False for what is not a constant.
    """

    value: int | float | None
    is_interval: bool = False
    known: bool = True


@dataclass(frozen=True)
class Looks:
    """One function: its name, the call without OVER, and where it looks."""

    name: str
    call: exp.Expr
    window: exp.Expr
    ignores_nulls: bool
    # None: the function has no frame.
    by_rows: bool | None
    start: Bound
    end: Bound

    @property
    def order(self) -> tuple[exp.Expr, ...]:
        order = self.window.args.get("order")
        return tuple(order.expressions) if order is not None else ()

    @property
    def partition(self) -> tuple[exp.Expr, ...]:
        return tuple(self.window.args.get("partition_by") or ())

    @property
    def shift(self) -> int | None:
        """By how many rows lag or lead look back (less than 0) or ahead; None: nobody can tell."""
        parts = self.call.expressions
        rows = whole_number(parts[1]) if len(parts) > 1 else 1
        return None if rows is None else (-rows if self.name == "LAG" else rows)

    @property
    def needs_whole_partition(self) -> bool:
        """Whether every row of a partition counts for each of them."""
        if self.name in OF_WHOLE_PARTITIONS:
            return True
        if self.name in ("LAG", "LEAD"):
            return self.ignores_nulls and (self.shift or 0) > 0
        return self.by_rows is not None and self.end.value is None

    @property
    def rows_ahead(self) -> int:
        """How many rows must be known behind a row."""
        if self.name in ("LAG", "LEAD"):
            return max(self.shift or 0, 0)
        return max(int(self.end.value or 0), 0) if self.by_rows else 0

    @property
    def rows_back(self) -> int:
        if self.name in ("LAG", "LEAD"):
            return 0 if self.ignores_nulls else max(-(self.shift or 0), 0)
        return max(-int(self.start.value or 0), 0) if self.by_rows else 0

    @property
    def time_ahead_us(self) -> int:
        """How far the watermark must be behind a row."""
        return max(int(self.end.value or 0), 0) if self.by_rows is False else 0

    @property
    def time_back_us(self) -> int:
        return max(-int(self.start.value or 0), 0) if self.by_rows is False else 0

    @property
    def runs_on(self) -> bool:
        """Whether it sees all rows of its partition since the first."""
        if self.name in ("LAG", "LEAD"):
            return self.ignores_nulls
        return self.by_rows is None or self.start.value is None


def looks_of(window: exp.Expr) -> Looks:
    call, ignores = window.this, False
    while isinstance(call, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        ignores = ignores or isinstance(call, exp.IgnoreNulls)
        call = call.this
    name = ex.call_name(call) or ""
    spec, ordered = window.args.get("spec"), window.args.get("order") is not None
    if name in NO_FRAME:
        return Looks(name, call, window, ignores, None, Bound(None), Bound(0))
    if spec is None:
        # What is equal in order to the current row is in the frame.
        end = Bound(0 if ordered else None)
        return Looks(name, call, window, ignores, False, Bound(None), end)
    start, end = _bound(spec, "start"), _bound(spec, "end")
    by_rows = str(spec.args.get("kind")).upper() == "ROWS"
    return Looks(name, call, window, ignores, by_rows, start, end)


def _bound(spec: exp.Expr, which: str) -> Bound:
    value, side = spec.args.get(which), str(spec.args.get(f"{which}_side") or "").upper()
    if value is None or value == "CURRENT ROW":
        return Bound(0)
    if value == "UNBOUNDED":
        return Bound(None)
    sign = -1 if side == "PRECEDING" else 1
    micros = ex.interval_micros(value)
    if micros is not None:
        return Bound(sign * micros, True)
    number = _number(value)
    return Bound(0, known=False) if number is None else Bound(sign * number)


def whole_number(tree: exp.Expr) -> int | None:
    number = _number(tree)
    return number if isinstance(number, int) else None


def _number(tree: exp.Expr) -> int | float | None:
    tree = tree.unnest()
    if isinstance(tree, exp.Neg):
        inner = _number(tree.this)
        return None if inner is None else -inner
    if not isinstance(tree, exp.Literal) or tree.is_string:
        return None
    return int(tree.name) if tree.is_int else float(tree.name)
