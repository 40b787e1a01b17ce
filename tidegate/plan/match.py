"""MATCH_RECOGNIZE in FROM: its clauses as a node, and the measures as a projection above it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from tidegate.errors import did_you_mean
from tidegate.plan import nodes as n
from tidegate.plan.match_values import NAVIGATION, RowResolver, Values
from tidegate.plan.nodes.match import comes_on_time
from tidegate.plan.scope import Context, Relation, Scope, by_id, column, derived_field
from tidegate.sql import expressions as ex
from tidegate.sql import match_recognize as pt
from tidegate.sql.dialect import own_span
from tidegate.types import Span

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
        on_time = comes_on_time(pattern, within_us)
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
        known = by_id(match.fields)
        fields, taken = list(keys), {item.id for item in keys}
        for name, tree in items:
            bare = known.get(tree.name) if isinstance(tree, exp.Column) else None
            if bare is not None and bare.id not in taken:
                fields.append(bare.renamed(name))
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
        found = by_id(self.node.fields).get(tree.name)
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
        fields = by_id(self.node.fields)
        times = [item for item in self.node.fields if item.on_time]
        first = order[0] if order else None
        target = first.this if isinstance(first, exp.Ordered) else first
        time = fields.get(target.name) if isinstance(target, exp.Column) else None
        down = isinstance(first, exp.Ordered) and bool(first.args.get("desc"))
        if time is None or not time.on_time or down:
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

    def _values(self) -> Values:
        return Values(self.context, self.scope, self.names, by_id(self.node.fields))

    def _conditions(self, pattern: pt.Pattern) -> tuple[n.Condition, ...]:
        variables = {name: frozenset([name]) for name in pt.variables(pattern)}
        found: dict[str, n.Condition] = {}
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

    values: Values
    time: n.Field
    on_time: bool
    parts: list[n.Pick | n.Total] = field(default_factory=list)
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
            return self._field(n.Pick(column(self.time)), name, tree, role)
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
        self, part: n.Pick | n.Total, name: str, like: exp.Expr, role: n.Role = n.Role.PLAIN
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
