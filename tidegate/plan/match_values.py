"""Expressions over the rows of a match: what they read of which row, and what is left to compute.

A.price is the price of the last row of A; FIRST, LAST and PREV say another one. In a measure each
such value becomes a field of the match, and Spark computes the rest above it. In a condition Spark
computes below the operator whatever needs one row only, so that the operator is left with what
compares different rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from tidegate.errors import did_you_mean
from tidegate.plan import nodes as n
from tidegate.plan.resolve import UNKNOWN, Resolver
from tidegate.plan.scope import Context, Scope, column, enclosed, infer_type, volatile
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span

NAVIGATION = frozenset({"FIRST", "LAST", "PREV", "NEXT"})
_UNSUPPORTED = {
    "NEXT": (
        "NEXT looks at a row that has not come yet",
        "name that row in the pattern: PATTERN (A B), and read B.x.",
    ),
    "MATCH_NUMBER": (
        "MATCH_NUMBER() would have to be counted for ever",
        "number the matches above: row_number() OVER (PARTITION BY … ORDER BY …).",
    ),
    "CLASSIFIER": (
        "CLASSIFIER() is not supported",
        "count(A.ts) > 0 says whether a match has a row of A.",
    ),
    "MATCH_PROCTIME": ("MATCH_PROCTIME() is not supported", "use MATCH_ROWTIME()."),
}
_OWN = NAVIGATION | {"MATCH_ROWTIME", *_UNSUPPORTED}
# Operators and leaves that give NULL where what they read is NULL.
_STRICT = (
    exp.Column,
    exp.Literal,
    exp.Paren,
    exp.Neg,
    exp.Add,
    exp.Sub,
    exp.Mul,
    exp.Div,
    exp.Mod,
    exp.EQ,
    exp.NEQ,
    exp.LT,
    exp.LTE,
    exp.GT,
    exp.GTE,
    exp.Not,
    exp.Cast,
    exp.DataType,
    exp.Interval,
    exp.Var,
    exp.Identifier,
)


@dataclass
class RowResolver(Resolver):
    """Names in MATCH_RECOGNIZE: A.price keeps its variable as the table of the column."""

    variables: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def _column(self, node: exp.Column) -> exp.Expr:
        table = node.parts[0]
        if len(node.parts) < 2 or table.name.upper() not in self.variables:
            return super()._column(node)
        names = [exp.to_identifier(part.name, quoted=True) for part in node.parts[1:]]
        rest = exp.Column(**dict(zip(("this", "table", "db"), reversed(names), strict=False)))
        span = own_span(node)
        if span is not None:
            rest.meta["span"] = (span.start, span.end)
        found = super()._column(rest)
        for part in found.find_all(exp.Column):
            part.set("table", exp.to_identifier(table.name.upper()))
        return found

    def _star(self, node: exp.Expr, star: exp.Expr) -> list[exp.Expr]:
        """count(A.*) counts the rows of A."""
        table = star.args.get("table")
        if table is not None and table.name.upper() in self.variables:
            return [star.copy()]
        return super()._star(node, star)

    def _unknown(self, parts: list[str], node: exp.Column) -> None:
        if len(parts) > 1 and not self.scope.find(parts[0]):
            hint = did_you_mean(parts[0], list(self.variables), "variables of the pattern")
            message = f"there is no column {'.'.join(parts)}"
            self.context.report("TG-301", message, node, hint)
        else:
            super()._unknown(parts, node)

    def _check_function(self, node: exp.Expr) -> None:
        name = ex.call_name(node)
        if name not in _OWN:
            super()._check_function(node)
        elif name in _UNSUPPORTED:
            message, hint = _UNSUPPORTED[name]
            self.context.report("TG-103", message, node, hint)


@dataclass
class Values:
    """Takes expressions of MEASURES and DEFINE apart."""

    context: Context
    scope: Scope
    names: Mapping[str, frozenset[str]]
    fields: Mapping[str, n.Field]

    def resolved(self, tree: exp.Expr, measure: bool) -> exp.Expr:
        found = RowResolver(self.context, self.scope, variables=self.names).resolve(tree)
        for window in found.find_all(exp.Window):
            hint = "read other rows with FIRST, LAST and PREV."
            message = "OVER does not belong into MATCH_RECOGNIZE"
            self.context.report("TG-305", message, window, hint)
        rowtimes = [call for name, call in ex.calls(found) if name == "MATCH_ROWTIME"]
        if rowtimes and not measure:
            hint = "read the event time of rows: LAST(A.ts)."
            message = "MATCH_ROWTIME() is a measure, as it is known when a match is over"
            self.context.report("TG-103", message, rowtimes[0], hint)
        return found

    # Single values

    def pick(self, tree: exp.Expr) -> n.Pick:
        """A column, or FIRST, LAST or PREV of an expression."""
        name = ex.call_name(tree)
        if name not in NAVIGATION or not tree.expressions:
            if name in NAVIGATION:
                self._report(f"{name} needs a column", tree, f"{name}(A.price)")
            return n.Pick(bare(tree), self._variables(tree))
        inner, count = tree.expressions[0], self._count(tree, 1 if name in ("PREV", "NEXT") else 0)
        if name in ("PREV", "NEXT"):
            moves = ex.call_name(inner.unnest()) in ("FIRST", "LAST")
            at = self.pick(inner.unnest()) if moves else self._plain(inner, tree)
            return replace(at, back=count)
        return replace(self._plain(inner, tree), last=name == "LAST", offset=count)

    def _plain(self, inner: exp.Expr, tree: exp.Expr) -> n.Pick:
        if ex.has_aggregate(inner) or any(name in NAVIGATION for name, _ in ex.calls(inner)):
            message = f"{ex.call_name(tree)} reads columns, and not what other functions find"
            self._report(message, tree, "PREV(LAST(A.price), 2) is all that can be nested.")
        return n.Pick(bare(inner), self._variables(inner))

    def _count(self, tree: exp.Expr, default: int) -> int:
        if len(tree.expressions) < 2:
            return default
        count = tree.expressions[1]
        if isinstance(count, exp.Literal) and count.is_int and len(tree.expressions) == 2:
            return int(count.name)
        self._report(
            f"{ex.call_name(tree)} takes a number of rows that is a constant",
            tree,
            f"{ex.call_name(tree)}(A.price, 2)",
        )
        return default

    def total(self, tree: exp.Expr) -> n.Total:
        """An aggregate over the rows of a variable."""
        for name, call in ex.calls(tree):
            if name in NAVIGATION:
                hint = "aggregates go over all rows of a variable: sum(A.price)."
                self._report(f"{name} does not belong into an aggregate", call, hint)
        return n.Total(bare(tree), self._variables(tree))

    def _variables(self, tree: exp.Expr) -> frozenset[str] | None:
        """The variables whose rows an expression reads; None is all of them."""
        found = tables_of(tree)
        if len(found) > 1:
            hint = "write FIRST, LAST and aggregates of each variable apart."
            self._report("this reads rows of several variables at once", tree, hint)
        name = next(iter(found), None)
        return self.names.get(name) if name is not None else None

    def _report(self, message: str, at: exp.Expr, hint: str) -> None:
        self.context.report("TG-313", message, at, hint)

    def field(self, part: n.Pick | n.Total, name: str, role: n.Role) -> n.Field:
        tree = part.value if isinstance(part, n.Pick) else part.call
        unstable = volatile(tree, self.fields)
        made = self.context.fresh(name)
        return n.Field(made, name, infer_type(tree, self.fields), role, None, unstable)

    # Conditions

    def condition(self, variable: str, written: exp.Expr) -> n.Condition:
        """What DEFINE says of a variable, with everything that Spark can compute taken out."""
        parts: list[n.Pick | n.Total] = []
        tree = self._left(self.resolved(written, measure=False), variable, parts)
        return n.Condition(variable, tree, tuple(parts))

    def _left(self, tree: exp.Expr, variable: str, parts: list[n.Pick | n.Total]) -> exp.Expr:
        """What is left of a condition for the operator."""
        if isinstance(tree, exp.Literal | exp.Boolean | exp.Null | exp.DataType):
            return tree
        if ex.is_aggregate_call(tree) and ex.call_name(tree) not in NAVIGATION:
            return _placed(self.total(tree), parts, tree)
        references = [self._current(self.pick(part), variable) for part in _references(tree)]
        places = {(at.variables, at.last, at.offset, at.back) for at in references}
        if len(places) <= 1 and not _has_total(tree):
            at = references[0] if references else n.Pick(tree)
            return _placed(_single(tree, at), parts, tree)
        result = tree.copy()
        for key, value in tree.args.items():
            if isinstance(value, exp.Expr):
                result.set(key, self._left(value, variable, parts))
            elif isinstance(value, list):
                lists = [self._left(v, variable, parts) for v in value if isinstance(v, exp.Expr)]
                result.set(key, lists)
        return result

    def _current(self, at: n.Pick, variable: str) -> n.Pick:
        """The row that is looked at is the last one of its variable, and of all."""
        own = at.variables is not None and variable in at.variables
        return replace(at, variables=None) if own and at.last and not at.offset else at


def _placed(part: n.Pick | n.Total, parts: list[n.Pick | n.Total], like: exp.Expr) -> exp.Expr:
    if part not in parts:
        parts.append(part)
    return column(replace(UNKNOWN, id=f"?{parts.index(part)}"), like)


def _single(tree: exp.Expr, at: n.Pick) -> n.Pick:
    """An expression over one row: computed there, wherever it is read."""
    here = at.is_current and not at.back
    missing = None if here or _is_strict(tree) else _with_rows(tree, _nothing)
    return replace(at, value=_with_rows(tree, lambda part: part), missing=missing)


def _references(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The columns and navigations of an expression, outermost first."""
    if isinstance(tree, exp.Column) or ex.call_name(tree) in NAVIGATION:
        yield tree
        return
    for child in tree.iter_expressions():
        yield from _references(child)


def _has_total(tree: exp.Expr) -> bool:
    if ex.call_name(tree) in NAVIGATION:
        return False
    return ex.is_aggregate_call(tree) or any(map(_has_total, tree.iter_expressions()))


def _is_strict(tree: exp.Expr) -> bool:
    if ex.call_name(tree) in NAVIGATION:
        return True
    return isinstance(tree, _STRICT) and all(map(_is_strict, tree.iter_expressions()))


def _with_rows(tree: exp.Expr, made: object) -> exp.Expr:
    """The expression with what it reads of its row put in place of columns and navigations."""
    if isinstance(tree, exp.Column):
        return made(bare(tree))  # type: ignore[operator, no-any-return]
    if ex.call_name(tree) in NAVIGATION:
        inner = tree.expressions[0]
        if ex.call_name(inner.unnest()) in NAVIGATION:
            return _with_rows(inner.unnest(), made)
        return made(enclosed(bare(inner)))  # type: ignore[operator, no-any-return]
    result = tree.copy()
    for key, value in tree.args.items():
        if isinstance(value, exp.Expr):
            result.set(key, _with_rows(value, made))
        elif isinstance(value, list):
            parts = [_with_rows(v, made) if isinstance(v, exp.Expr) else v for v in value]
            result.set(key, parts)
    return result


def _nothing(part: exp.Expr) -> exp.Expr:
    """NULL, of the type that an expression has."""
    return exp.Case(ifs=[exp.If(this=exp.false(), true=part)])


def bare(tree: exp.Expr) -> exp.Expr:
    """The expression over the columns of a row, whatever variable it is mapped to."""

    def plain(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column) and isinstance(part.this, exp.Star):
            return exp.Star()
        if isinstance(part, exp.Column):
            part.set("table", None)
        return part

    return tree.copy().transform(plain)


def tables_of(tree: exp.Expr) -> set[str | None]:
    """The variables that stand before columns, in capitals; None for columns without one."""
    return {part.table.upper() or None for part in tree.find_all(exp.Column)}


__all__ = ["NAVIGATION", "RowResolver", "Values", "bare", "tables_of"]
