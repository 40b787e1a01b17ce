"""MATCH_RECOGNIZE in FROM: its clauses as a node, and the measures as a projection above it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from tidegate.errors import did_you_mean
from tidegate.plan import nodes as n
from tidegate.plan.bind.resolve import UNKNOWN, Resolver
from tidegate.plan.bind.scope import (
    Context,
    Relation,
    Scope,
    column,
    derived_field,
    fields_by_id,
    infer_type,
    parenthesize,
    volatile,
)
from tidegate.plan.nodes.match import has_bounded_delay
from tidegate.sql import expressions as ex
from tidegate.sql import match_recognize as pt
from tidegate.sql.dialect import own_span
from tidegate.types import Span

# ---- Expressions over the rows of a match: what they read of which row, and what is left to compute.
#
# A.price is the price of the last row of A; FIRST, LAST and PREV say another one. In a measure each
# such value becomes a field of the match, and Spark computes the rest above it. In a condition Spark
# computes below the operator whatever needs one row only, so that the operator is left with what
# compares different rows.

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
class MatchValues:
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

    def pick(self, tree: exp.Expr) -> n.Navigation:
        """A column, or FIRST, LAST or PREV of an expression."""
        name = ex.call_name(tree)
        if name not in NAVIGATION or not tree.expressions:
            if name in NAVIGATION:
                self._report(f"{name} needs a column", tree, f"{name}(A.price)")
            return n.Navigation(bare(tree), self._variables(tree))
        inner, count = tree.expressions[0], self._count(tree, 1 if name in ("PREV", "NEXT") else 0)
        if name in ("PREV", "NEXT"):
            moves = ex.call_name(inner.unnest()) in ("FIRST", "LAST")
            at = self.pick(inner.unnest()) if moves else self._plain(inner, tree)
            return replace(at, back=count)
        return replace(self._plain(inner, tree), last=name == "LAST", offset=count)

    def _plain(self, inner: exp.Expr, tree: exp.Expr) -> n.Navigation:
        if ex.has_aggregate(inner) or any(name in NAVIGATION for name, _ in ex.calls(inner)):
            message = f"{ex.call_name(tree)} reads columns, and not what other functions find"
            self._report(message, tree, "PREV(LAST(A.price), 2) is all that can be nested.")
        return n.Navigation(bare(inner), self._variables(inner))

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

    def total(self, tree: exp.Expr) -> n.MatchAggregate:
        """An aggregate over the rows of a variable."""
        for name, call in ex.calls(tree):
            if name in NAVIGATION:
                hint = "aggregates go over all rows of a variable: sum(A.price)."
                self._report(f"{name} does not belong into an aggregate", call, hint)
        return n.MatchAggregate(bare(tree), self._variables(tree))

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

    def field(self, part: n.Navigation | n.MatchAggregate, name: str, role: n.Role) -> n.Field:
        tree = part.value if isinstance(part, n.Navigation) else part.call
        unstable = volatile(tree, self.fields)
        made = self.context.fresh(name)
        return n.Field(made, name, infer_type(tree, self.fields), role, None, unstable)

    # Conditions

    def condition(self, variable: str, written: exp.Expr) -> n.DefineCondition:
        """What DEFINE says of a variable, with everything that Spark can compute taken out."""
        parts: list[n.Navigation | n.MatchAggregate] = []
        tree = self._left(self.resolved(written, measure=False), variable, parts)
        return n.DefineCondition(variable, tree, tuple(parts))

    def _left(
        self, tree: exp.Expr, variable: str, parts: list[n.Navigation | n.MatchAggregate]
    ) -> exp.Expr:
        """What is left of a condition for the operator."""
        if isinstance(tree, exp.Literal | exp.Boolean | exp.Null | exp.DataType):
            return tree
        if ex.is_aggregate_call(tree) and ex.call_name(tree) not in NAVIGATION:
            return _placed(self.total(tree), parts, tree)
        references = [self._current(self.pick(part), variable) for part in _references(tree)]
        places = {(at.variables, at.last, at.offset, at.back) for at in references}
        if len(places) <= 1 and not _has_total(tree):
            at = references[0] if references else n.Navigation(tree)
            return _placed(_single(tree, at), parts, tree)
        result = tree.copy()
        for key, value in tree.args.items():
            if isinstance(value, exp.Expr):
                result.set(key, self._left(value, variable, parts))
            elif isinstance(value, list):
                lists = [self._left(v, variable, parts) for v in value if isinstance(v, exp.Expr)]
                result.set(key, lists)
        return result

    def _current(self, at: n.Navigation, variable: str) -> n.Navigation:
        """The row that is looked at is the last one of its variable, and of all."""
        own = at.variables is not None and variable in at.variables
        return replace(at, variables=None) if own and at.last and not at.offset else at


def _placed(
    part: n.Navigation | n.MatchAggregate,
    parts: list[n.Navigation | n.MatchAggregate],
    like: exp.Expr,
) -> exp.Expr:
    if part not in parts:
        parts.append(part)
    return column(replace(UNKNOWN, id=f"?{parts.index(part)}"), like)


def _single(tree: exp.Expr, at: n.Navigation) -> n.Navigation:
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
        return made(parenthesize(bare(inner)))  # type: ignore[operator, no-any-return]
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


# Quantifiers are written out where a pattern is run.
_MOST_STEPS = 10_000
_PATTERN = "PATTERN (A B+ C)"
Names = Mapping[str, frozenset[str]]


def bind_match(
    context: Context, node: n.Node, relation: Relation, clause: exp.Expr, parent: Scope | None
) -> tuple[n.Node, tuple[n.Field, ...]]:
    """A row a match, over the rows of a table; its columns are those of PARTITION BY and MEASURES.

    After an error the columns are there, so that what reads them is checked too.
    """
    scope = Scope([relation], parent=parent)
    return _MatchBinder(context, node, clause, scope).bind()


@dataclass
class _MatchBinder:
    context: Context
    node: n.Node
    clause: exp.Expr
    scope: Scope
    names: dict[str, frozenset[str]] = field(default_factory=dict)

    def bind(self) -> tuple[n.Node, tuple[n.Field, ...]]:
        self._check_rows()
        pattern = self.clause.args["pattern"]
        self._check_pattern(pattern)
        self.names = self._names(pattern)
        within_us = self._within()
        partition = self._partition()
        time, order = self._order()
        conditions = self._conditions(pattern)
        on_time = has_bounded_delay(pattern, within_us)
        measured = _Measures(self._values(), time, on_time)
        items = [(item.alias, measured.rewrite(item)) for item in self._written("measures")]
        keys = tuple(self._key_field(tree) for tree in partition)
        if not items and not keys:
            hint = "MEASURES FIRST(A.ts) AS begins, LAST(B.ts) AS ends"
            self._report("a match has neither MEASURES nor PARTITION BY", self.clause, hint)
        match = n.Match(
            (*keys, *measured.fields),
            input=self.node,
            partition=tuple(partition),
            order=tuple(order),
            time_id=time.id,
            pattern=pattern,
            conditions=conditions,
            measures=tuple(measured.parts),
            skip=self._skip(pattern),
            within_us=within_us,
            ttl_us=self.context.ttl_us,
            span=own_span(self.clause),
        )
        return self._projected(match, keys, items)

    def _projected(
        self, match: n.Match, keys: tuple[n.Field, ...], items: list[tuple[str, exp.Expr]]
    ) -> tuple[n.Node, tuple[n.Field, ...]]:
        known = fields_by_id(match.fields)
        fields, taken = list(keys), {item.id for item in keys}
        for name, tree in items:
            bare = known.get(tree.name) if isinstance(tree, exp.Column) else None
            if bare is not None and bare.id not in taken:
                fields.append(bare.with_name(name))
            else:
                fields.append(derived_field(self.context, name, tree, known))
            taken.add(fields[-1].id)
        trees = (*(column(item) for item in keys), *(tree for _, tree in items))
        project = n.Project(tuple(fields), input=match, expressions=trees, span=match.span)
        return project, tuple(fields)

    # Clauses

    def _written(self, key: str) -> list[exp.Expr]:
        return list(self.clause.args.get(key) or [])

    def _report(self, message: str, at: exp.Expr | Span | None, hint: str) -> None:
        self.context.report("TG-313", message, at, hint)

    def _check_rows(self) -> None:
        rows = self.clause.args.get("rows")
        if rows is not None and rows.name != "ONE ROW PER MATCH":
            self.context.report(
                "TG-103",
                "ALL ROWS PER MATCH is not supported",
                rows,
                "ONE ROW PER MATCH; collect_list(A.x) AS xs in MEASURES has the rows of a match.",
            )

    def _check_pattern(self, pattern: pt.Pattern) -> None:
        for part in pt.walk(pattern):
            if isinstance(part, pt.Foreign):
                message = f"a PATTERN with {part.what} is not supported"
                hint = f"write what may follow what: {_PATTERN}, (A B | B A)."
                self.context.report("TG-103", message, part.span, hint)
            if isinstance(part, pt.Repetition):
                self._check_repetition(part)
        if pt.shortest(pattern) == 0:
            self._report(
                f"the pattern {pt.text_of(pattern)} also matches no rows at all",
                _span_of(pattern),
                "let one variable be there at least once: A+ instead of A*.",
            )
        elif _steps(pattern) > _MOST_STEPS:
            self._report(
                f"the quantifiers of this pattern add up to more than {_MOST_STEPS:,} rows",
                _span_of(pattern),
                "write A+ for any number, and say in DEFINE when it ends.",
            )

    def _check_repetition(self, part: pt.Repetition) -> None:
        text = pt.text_of(part)
        if part.most is not None and (part.most < part.least or part.most == 0):
            hint = "the least number comes first, and the most is at least 1: A{2,3}."
            self._report(f"{text} can never match", part.span, hint)
        if pt.shortest(part.part) == 0 and part.most != 1:
            hint = "leave one of the quantifiers out: (A B?)* instead of (A? B?)*."
            self._report(f"{text} repeats what may be no row at all", part.span, hint)

    def _names(self, pattern: pt.Pattern) -> dict[str, frozenset[str]]:
        """The variables, and for subsets those they stand for."""
        foreign = [name for p in pt.walk(pattern) if isinstance(p, pt.Foreign) for name in p.names]
        names = {name: frozenset([name]) for name in (*pt.variables(pattern), *foreign)}
        known = dict(names)
        for subset in self._written("subsets"):
            own, *members = (part.name.upper() for part in subset.expressions)
            for part in subset.expressions[1:]:
                self._known(part, known)
            if own in names:
                hint = f"give the subset another name: {own}_2 = (…)."
                self._report(f"{own} is a variable of the pattern already", subset, hint)
            names.setdefault(own, frozenset(members) & frozenset(known))
        return names

    def _known(self, name: exp.Expr, names: Names) -> frozenset[str]:
        found = names.get(name.name.upper())
        if found is None:
            hint = did_you_mean(name.name, list(names), "variables of the pattern")
            self._report(f"the pattern has no variable {name.name}", name, hint)
        return found or frozenset()

    def _within(self) -> int | None:
        within = self.clause.args.get("within")
        if within is None:
            return None
        micros = ex.interval_micros(within)
        if micros is None or micros <= 0:
            self.context.report(
                "TG-105",
                "WITHIN must be a constant interval of fixed length, above zero",
                within,
                "WITHIN INTERVAL '10' MINUTE; months and years have no fixed length.",
            )
            return None
        return micros

    def _partition(self) -> list[exp.Expr]:
        found: list[exp.Expr] = []
        for part in self._written("partition_by"):
            tree = RowResolver(self.context, self.scope).resolve(part)
            if not isinstance(tree, exp.Column):
                hint = "compute it in a subquery: FROM (SELECT …, lower(a) AS a FROM …)."
                self._report("PARTITION BY of MATCH_RECOGNIZE names columns", part, hint)
                continue
            found.append(tree)
        return found

    def _key_field(self, tree: exp.Expr) -> n.Field:
        found = fields_by_id(self.node.fields).get(tree.name)
        written = next((f for f in self.scope.fields if f.id == tree.name), found)
        if found is None or written is None:
            return n.Field(self.context.fresh("key"), "?")
        return n.Field(
            self.context.fresh(written.name),
            written.name,
            found.type,
            volatile=found.volatile,
            nullable=found.nullable,
        )

    def _order(self) -> tuple[n.Field, list[exp.Expr]]:
        """The event time, and all that rows are ordered by."""
        clause = self.clause.args.get("order")
        written = list(clause.expressions) if clause is not None else []
        order = [RowResolver(self.context, self.scope).resolve(part) for part in written]
        fields = fields_by_id(self.node.fields)
        times = [item for item in self.node.fields if item.is_event_time]
        first = order[0] if order else None
        target = first.this if isinstance(first, exp.Ordered) else first
        time = fields.get(target.name) if isinstance(target, exp.Column) else None
        down = isinstance(first, exp.Ordered) and bool(first.args.get("desc"))
        if time is None or not time.is_event_time or down:
            name = times[0].name if times else "ts"
            hint = f"ORDER BY {name}" if times else "declare one: WATERMARK FOR ts AS ts"
            self.context.report(
                "TG-421",
                "rows of a stream are matched in the order of event time, as the watermark passes "
                "them, so ORDER BY begins with it, upwards",
                clause if clause is not None else self.clause,
                f"{hint}.",
            )
        return time or n.Field("?", "?"), order

    def _skip(self, pattern: pt.Pattern) -> n.Skip:
        after = self.clause.args.get("after")
        if after is None or after.name == "PAST LAST ROW":
            return n.Skip()
        if not isinstance(after, exp.Dot):
            return n.Skip(n.SkipTo.NEXT_ROW)
        to = n.SkipTo.FIRST if after.this.name == "TO FIRST" else n.SkipTo.LAST
        found = self._known(after.expression, self.names)
        name = after.expression.name
        if found and not pt.occurs(pattern, found):
            hint = "AFTER MATCH SKIP PAST LAST ROW, or a variable that every match has."
            message = f"a match may have no row of {name}, and then there is nowhere to skip to"
            self._report(message, after, hint)
        elif found:
            first = pt.first_place(pattern, found) or 0
            place = first if to is n.SkipTo.FIRST else max(first, pt.last_place(pattern, found))
            if place == 0:
                hint = "AFTER MATCH SKIP TO NEXT ROW, or PAST LAST ROW."
                message = f"{name} may be the first row of a match, which would be found for ever"
                self._report(message, after, hint)
        return n.Skip(to, found)

    # Conditions

    def _values(self) -> MatchValues:
        return MatchValues(self.context, self.scope, self.names, fields_by_id(self.node.fields))

    def _conditions(self, pattern: pt.Pattern) -> tuple[n.DefineCondition, ...]:
        variables = {name: frozenset([name]) for name in pt.variables(pattern)}
        found: dict[str, n.DefineCondition] = {}
        for item in self._written("define"):
            name = item.args["alias"]
            self._known(name, variables)
            if name.name.upper() in found:
                hint = "join the conditions by AND."
                self._report(f"{name.name} is defined twice", name, hint)
            found[name.name.upper()] = self._values().condition(name.name.upper(), item.this)
        return tuple(found[name] for name in variables if name in found)


@dataclass
class _Measures:
    """What a match gives out: a field for each value that a measure takes from its rows."""

    values: MatchValues
    time: n.Field
    on_time: bool
    parts: list[n.Navigation | n.MatchAggregate] = field(default_factory=list)
    fields: list[n.Field] = field(default_factory=list)

    def rewrite(self, item: exp.Expr) -> exp.Expr:
        """A measure as an expression over these fields."""
        tree = self.values.resolved(item.this, measure=True)
        return self._rewrite(tree, item.alias)

    def _rewrite(self, tree: exp.Expr, name: str) -> exp.Expr:
        call = ex.call_name(tree)
        if call == "MATCH_ROWTIME":
            if any(part.name != self.time.id for part in tree.expressions):
                message = (
                    "MATCH_ROWTIME() is the event time of the last row, by which rows are ordered"
                )
                self.values.context.report("TG-313", message, tree, "MATCH_ROWTIME()")
            role = n.Role.TIME if self.on_time else n.Role.PLAIN
            return self._field(n.Navigation(column(self.time)), name, tree, role)
        if isinstance(tree, exp.Column) or call in NAVIGATION:
            return self._field(self.values.pick(tree), name, tree)
        if ex.is_aggregate_call(tree):
            return self._field(self.values.total(tree), name, tree)
        result = tree.copy()
        for key, value in tree.args.items():
            if isinstance(value, exp.Expr):
                result.set(key, self._rewrite(value, name))
            elif isinstance(value, list):
                parts = [self._rewrite(v, name) if isinstance(v, exp.Expr) else v for v in value]
                result.set(key, parts)
        return result

    def _field(
        self,
        part: n.Navigation | n.MatchAggregate,
        name: str,
        like: exp.Expr,
        role: n.Role = n.Role.PLAIN,
    ) -> exp.Expr:
        for known, item in zip(self.parts, self.fields, strict=True):
            if known == part and item.role is role:
                return column(item, like)
        made = self.values.field(part, name, role)
        self.parts.append(part)
        self.fields.append(made)
        return column(made, like)


def _steps(pattern: pt.Pattern) -> int:
    """How long a pattern is with its quantifiers written out."""
    if isinstance(pattern, pt.Concatenation | pt.Alternation):
        return sum(map(_steps, pattern.parts))
    if isinstance(pattern, pt.Repetition):
        return max(pattern.least, pattern.most or 1, 1) * _steps(pattern.part)
    return 1


def _span_of(pattern: pt.Pattern) -> Span | None:
    spans = [part.span for part in pt.walk(pattern) if hasattr(part, "span")]
    if not spans:
        return None
    return Span(min(span.start for span in spans), max(span.end for span in spans))
