"""MATCH_RECOGNIZE in FROM: a Match node, and a projection above it for the measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from tidegate.errors import did_you_mean
from tidegate.plan import nodes as n
from tidegate.plan.bind.resolve import UNKNOWN_FIELD, Resolver
from tidegate.plan.bind.scope import (
    BindingContext,
    Relation,
    Scope,
    column,
    derived_field,
    fields_by_id,
    infer_type,
    is_volatile,
    parenthesize,
    typed_null,
)
from tidegate.plan.nodes.match import has_bounded_delay
from tidegate.sql import expressions as ex
from tidegate.sql import match_recognize as pt
from tidegate.sql.dialect import own_span
from tidegate.types import Span

# ---- Expressions over the rows of a match
#
# A.price is the price in the last row of A; FIRST, LAST and PREV refer to other rows. In a measure,
# each such value becomes a field of the Match node, and Spark evaluates the rest of the expression
# above it. In a condition, Spark evaluates every part that reads a single row below the operator.
# The operator evaluates only what combines several rows.

NAVIGATION = frozenset({"FIRST", "LAST", "PREV", "NEXT"})
_UNSUPPORTED = {
    "NEXT": (
        "NEXT would read a row that has not arrived yet",
        "name that row in the pattern: PATTERN (A B), and read B.x.",
    ),
    "MATCH_NUMBER": (
        "MATCH_NUMBER() is not supported: matches would be counted without end",
        "number the matches in an outer query: row_number() OVER (PARTITION BY … ORDER BY …).",
    ),
    "CLASSIFIER": (
        "CLASSIFIER() is not supported",
        "use count(A.ts) > 0, which is true if a match has a row of A.",
    ),
    "MATCH_PROCTIME": ("MATCH_PROCTIME() is not supported", "use MATCH_ROWTIME()."),
}
_MATCH_FUNCTIONS = NAVIGATION | {"MATCH_ROWTIME", *_UNSUPPORTED}
# Expressions that are NULL if an operand is NULL.
_NULL_PROPAGATING = (
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
    """Resolves names in MATCH_RECOGNIZE: A.price keeps its variable as the table of the column."""

    variables: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def _resolve_column(self, node: exp.Column) -> exp.Expr:
        table = node.parts[0]
        if len(node.parts) < 2 or table.name.upper() not in self.variables:
            return super()._resolve_column(node)
        names = [exp.to_identifier(part.name, quoted=True) for part in node.parts[1:]]
        unqualified = exp.Column(
            **dict(zip(("this", "table", "db"), reversed(names), strict=False))
        )
        span = own_span(node)
        if span is not None:
            unqualified.meta["span"] = (span.start, span.end)
        resolved = super()._resolve_column(unqualified)
        for part in resolved.find_all(exp.Column):
            part.set("table", exp.to_identifier(table.name.upper()))
        return resolved

    def _expand_star(self, node: exp.Expr, star: exp.Expr) -> list[exp.Expr]:
        """Keep the star of count(A.*), which counts the rows of A."""
        table = star.args.get("table")
        if table is not None and table.name.upper() in self.variables:
            return [star.copy()]
        return super()._expand_star(node, star)

    def _report_unknown_column(self, parts: list[str], node: exp.Column) -> None:
        if len(parts) > 1 and not self.scope.find_fields(parts[0]):
            hint = did_you_mean(parts[0], list(self.variables), "variables of the pattern")
            message = f"column {'.'.join(parts)} does not exist"
            self.context.report("TG-301", message, node, hint)
        else:
            super()._report_unknown_column(parts, node)

    def _check_function(self, node: exp.Expr) -> None:
        name = ex.call_name(node)
        if name not in _MATCH_FUNCTIONS:
            super()._check_function(node)
        elif name in _UNSUPPORTED:
            message, hint = _UNSUPPORTED[name]
            self.context.report("TG-103", message, node, hint)


@dataclass
class MatchExpressions:
    """Splits expressions of MEASURES and DEFINE into parts for Spark and for the operator."""

    context: BindingContext
    scope: Scope
    names: Mapping[str, frozenset[str]]
    fields: Mapping[str, n.Field]

    def resolve(self, tree: exp.Expr, measure: bool) -> exp.Expr:
        resolved = RowResolver(self.context, self.scope, variables=self.names).resolve(tree)
        for window in resolved.find_all(exp.Window):
            hint = "read other rows with FIRST, LAST and PREV."
            message = "OVER is not allowed in MATCH_RECOGNIZE"
            self.context.report("TG-305", message, window, hint)
        rowtimes = [call for name, call in ex.calls(resolved) if name == "MATCH_ROWTIME"]
        if rowtimes and not measure:
            hint = "use the event time of a row: LAST(A.ts)."
            message = (
                "MATCH_ROWTIME() is only allowed in MEASURES: it is known when a match is complete"
            )
            self.context.report("TG-103", message, rowtimes[0], hint)
        return resolved

    # Values of single rows

    def navigation(self, tree: exp.Expr) -> n.Navigation:
        """Return the row and expression of a column, or of FIRST, LAST or PREV."""
        name = ex.call_name(tree)
        if name not in NAVIGATION or not tree.expressions:
            if name in NAVIGATION:
                self._report(f"{name} needs a column", tree, f"{name}(A.price)")
            return n.Navigation(without_variables(tree), self._variables(tree))
        inner, count = (
            tree.expressions[0],
            self._row_count(tree, 1 if name in ("PREV", "NEXT") else 0),
        )
        if name in ("PREV", "NEXT"):
            is_nested = ex.call_name(inner.unnest()) in ("FIRST", "LAST")
            navigation = (
                self.navigation(inner.unnest()) if is_nested else self._column_of(inner, tree)
            )
            return replace(navigation, back=count)
        return replace(self._column_of(inner, tree), last=name == "LAST", offset=count)

    def _column_of(self, inner: exp.Expr, tree: exp.Expr) -> n.Navigation:
        if ex.has_aggregate(inner) or any(name in NAVIGATION for name, _ in ex.calls(inner)):
            message = f"{ex.call_name(tree)} takes columns, not the results of other functions"
            self._report(
                message, tree, "functions can only be nested as in PREV(LAST(A.price), 2)."
            )
        return n.Navigation(without_variables(inner), self._variables(inner))

    def _row_count(self, tree: exp.Expr, default: int) -> int:
        if len(tree.expressions) < 2:
            return default
        count = tree.expressions[1]
        if isinstance(count, exp.Literal) and count.is_int and len(tree.expressions) == 2:
            return int(count.name)
        self._report(
            f"the number of rows of {ex.call_name(tree)} must be a constant",
            tree,
            f"{ex.call_name(tree)}(A.price, 2)",
        )
        return default

    def aggregate(self, tree: exp.Expr) -> n.MatchAggregate:
        """Return an aggregate over the rows of a variable."""
        for name, call in ex.calls(tree):
            if name in NAVIGATION:
                hint = "an aggregate reads all rows of a variable: sum(A.price)."
                self._report(f"an aggregate cannot contain {name}", call, hint)
        return n.MatchAggregate(without_variables(tree), self._variables(tree))

    def _variables(self, tree: exp.Expr) -> frozenset[str] | None:
        """Return the variables whose rows an expression reads; None for all of them."""
        names = variables_of(tree)
        if len(names) > 1:
            hint = "use FIRST, LAST and aggregates for each variable separately."
            self._report("this expression reads rows of several variables", tree, hint)
        name = next(iter(names), None)
        return self.names.get(name) if name is not None else None

    def _report(self, message: str, location: exp.Expr, hint: str) -> None:
        self.context.report("TG-313", message, location, hint)

    def field(self, part: n.Navigation | n.MatchAggregate, name: str, role: n.Role) -> n.Field:
        tree = part.value if isinstance(part, n.Navigation) else part.call
        volatile = is_volatile(tree, self.fields)
        column_id = self.context.new_id(name)
        return n.Field(column_id, name, infer_type(tree, self.fields), role, None, volatile)

    # Conditions

    def condition(self, variable: str, definition: exp.Expr) -> n.DefineCondition:
        """Return the DEFINE condition of a variable, without the parts that Spark evaluates."""
        parts: list[n.Navigation | n.MatchAggregate] = []
        tree = self._operator_part(self.resolve(definition, measure=False), variable, parts)
        return n.DefineCondition(variable, tree, tuple(parts))

    def _operator_part(
        self, tree: exp.Expr, variable: str, parts: list[n.Navigation | n.MatchAggregate]
    ) -> exp.Expr:
        """Return the part of a condition that the operator evaluates; add Spark's to `parts`."""
        if isinstance(tree, exp.Literal | exp.Boolean | exp.Null | exp.DataType):
            return tree
        if ex.is_aggregate_call(tree) and ex.call_name(tree) not in NAVIGATION:
            return _reference_part(self.aggregate(tree), parts, tree)
        references = [
            self._as_current_row(self.navigation(part), variable) for part in _find_references(tree)
        ]
        rows = {(row.variables, row.last, row.offset, row.back) for row in references}
        if len(rows) <= 1 and not _has_aggregate(tree):
            row = references[0] if references else n.Navigation(tree)
            return _reference_part(_compute_on_row(tree, row), parts, tree)
        result = tree.copy()
        for key, value in tree.args.items():
            if isinstance(value, exp.Expr):
                result.set(key, self._operator_part(value, variable, parts))
            elif isinstance(value, list):
                values = [
                    self._operator_part(v, variable, parts)
                    for v in value
                    if isinstance(v, exp.Expr)
                ]
                result.set(key, values)
        return result

    def _as_current_row(self, navigation: n.Navigation, variable: str) -> n.Navigation:
        """Replace the last row of a variable by the current row, as in its own condition."""
        variables = navigation.variables
        is_last_row = navigation.last and not navigation.offset
        if variables is not None and variable in variables and is_last_row:
            return replace(navigation, variables=None)
        return navigation


def _reference_part(
    part: n.Navigation | n.MatchAggregate,
    parts: list[n.Navigation | n.MatchAggregate],
    origin: exp.Expr,
) -> exp.Expr:
    if part not in parts:
        parts.append(part)
    return column(replace(UNKNOWN_FIELD, id=f"?{parts.index(part)}"), origin)


def _compute_on_row(tree: exp.Expr, navigation: n.Navigation) -> n.Navigation:
    """Return an expression over a single row as a value of that row."""
    reads_current_row = navigation.is_current and not navigation.back
    missing = (
        None
        if reads_current_row or _propagates_null(tree)
        else _replace_references(tree, typed_null)
    )
    return replace(navigation, value=_replace_references(tree, lambda part: part), missing=missing)


def _find_references(tree: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the columns and navigations of an expression, outermost first."""
    if isinstance(tree, exp.Column) or ex.call_name(tree) in NAVIGATION:
        yield tree
        return
    for child in tree.iter_expressions():
        yield from _find_references(child)


def _has_aggregate(tree: exp.Expr) -> bool:
    if ex.call_name(tree) in NAVIGATION:
        return False
    return ex.is_aggregate_call(tree) or any(map(_has_aggregate, tree.iter_expressions()))


def _propagates_null(tree: exp.Expr) -> bool:
    if ex.call_name(tree) in NAVIGATION:
        return True
    return isinstance(tree, _NULL_PROPAGATING) and all(
        map(_propagates_null, tree.iter_expressions())
    )


def _replace_references(tree: exp.Expr, replace_value: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """Replace columns and navigations by columns of the row they refer to."""
    if isinstance(tree, exp.Column):
        return replace_value(without_variables(tree))
    if ex.call_name(tree) in NAVIGATION:
        inner = tree.expressions[0]
        if ex.call_name(inner.unnest()) in NAVIGATION:
            return _replace_references(inner.unnest(), replace_value)
        return replace_value(parenthesize(without_variables(inner)))
    result = tree.copy()
    for key, value in tree.args.items():
        if isinstance(value, exp.Expr):
            result.set(key, _replace_references(value, replace_value))
        elif isinstance(value, list):
            parts = [
                _replace_references(v, replace_value) if isinstance(v, exp.Expr) else v
                for v in value
            ]
            result.set(key, parts)
    return result


def without_variables(tree: exp.Expr) -> exp.Expr:
    """Return an expression over the columns of a row, without pattern variables."""

    def remove_variable(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column) and isinstance(part.this, exp.Star):
            return exp.Star()
        if isinstance(part, exp.Column):
            part.set("table", None)
        return part

    return tree.copy().transform(remove_variable)


def variables_of(tree: exp.Expr) -> set[str | None]:
    """Return the variables of columns in upper case; None for columns without one."""
    return {part.table.upper() or None for part in tree.find_all(exp.Column)}


# ---- The clauses of MATCH_RECOGNIZE

# Quantifiers are expanded when a pattern is compiled.
_MAX_STEPS = 10_000
_EXAMPLE_PATTERN = "PATTERN (A B+ C)"
VariableSets = Mapping[str, frozenset[str]]


def bind_match(
    context: BindingContext,
    node: n.Node,
    relation: Relation,
    clause: exp.Expr,
    parent: Scope | None,
) -> tuple[n.Node, tuple[n.Field, ...]]:
    """Bind MATCH_RECOGNIZE over the rows of a table: one row per match.

    The columns are those of PARTITION BY and MEASURES. They are also returned after an error, so
    that expressions that use them are checked.
    """
    scope = Scope([relation], parent=parent)
    return _MatchBinder(context, node, clause, scope).bind()


@dataclass
class _MatchBinder:
    context: BindingContext
    node: n.Node
    clause: exp.Expr
    scope: Scope
    names: dict[str, frozenset[str]] = field(default_factory=dict)

    def bind(self) -> tuple[n.Node, tuple[n.Field, ...]]:
        self._check_rows()
        pattern = self.clause.args["pattern"]
        self._check_pattern(pattern)
        self.names = self._bind_variables(pattern)
        within_us = self._bind_within()
        partition = self._bind_partition()
        time, order = self._bind_order()
        conditions = self._bind_conditions(pattern)
        bounded_delay = has_bounded_delay(pattern, within_us)
        measures = _Measures(self._expressions(), time, bounded_delay)
        items = [(item.alias, measures.rewrite(item)) for item in self._clause("measures")]
        keys = tuple(self._key_field(tree) for tree in partition)
        if not items and not keys:
            hint = "add MEASURES FIRST(A.ts) AS begins, LAST(B.ts) AS ends."
            self._report("MATCH_RECOGNIZE needs MEASURES or PARTITION BY", self.clause, hint)
        match = n.Match(
            (*keys, *measures.fields),
            input=self.node,
            partition=tuple(partition),
            order=tuple(order),
            time_id=time.id,
            pattern=pattern,
            conditions=conditions,
            measures=tuple(measures.parts),
            skip=self._bind_skip(pattern),
            within_us=within_us,
            ttl_us=self.context.ttl_us,
            span=own_span(self.clause),
        )
        return self._project_measures(match, keys, items)

    def _project_measures(
        self, match: n.Match, keys: tuple[n.Field, ...], items: list[tuple[str, exp.Expr]]
    ) -> tuple[n.Node, tuple[n.Field, ...]]:
        match_fields = fields_by_id(match.fields)
        fields, ids = list(keys), {item.id for item in keys}
        for name, tree in items:
            measure = match_fields.get(tree.name) if isinstance(tree, exp.Column) else None
            if measure is not None and measure.id not in ids:
                fields.append(measure.with_name(name))
            else:
                fields.append(derived_field(self.context, name, tree, match_fields))
            ids.add(fields[-1].id)
        trees = (*(column(item) for item in keys), *(tree for _, tree in items))
        project = n.Project(tuple(fields), input=match, expressions=trees, span=match.span)
        return project, tuple(fields)

    # Clauses

    def _clause(self, key: str) -> list[exp.Expr]:
        return list(self.clause.args.get(key) or [])

    def _report(self, message: str, location: exp.Expr | Span | None, hint: str) -> None:
        self.context.report("TG-313", message, location, hint)

    def _check_rows(self) -> None:
        rows = self.clause.args.get("rows")
        if rows is not None and rows.name != "ONE ROW PER MATCH":
            self.context.report(
                "TG-103",
                "ALL ROWS PER MATCH is not supported",
                rows,
                "use ONE ROW PER MATCH; collect_list(A.x) AS xs in MEASURES has all values of A.x.",
            )

    def _check_pattern(self, pattern: pt.Pattern) -> None:
        for part in pt.walk(pattern):
            if isinstance(part, pt.UnsupportedPattern):
                message = f"a PATTERN with {part.description} is not supported"
                hint = f"list the possible sequences: {_EXAMPLE_PATTERN}, (A B | B A)."
                self.context.report("TG-103", message, part.span, hint)
            if isinstance(part, pt.Repetition):
                self._check_repetition(part)
        if pt.min_length(pattern) == 0:
            self._report(
                f"the pattern {pt.to_text(pattern)} can match zero rows",
                _pattern_span(pattern),
                "require at least one row: A+ instead of A*.",
            )
        elif _count_steps(pattern) > _MAX_STEPS:
            self._report(
                f"the quantifiers of this pattern add up to more than {_MAX_STEPS:,} rows",
                _pattern_span(pattern),
                "use A+ for any number of rows, and define in DEFINE when it ends.",
            )

    def _check_repetition(self, part: pt.Repetition) -> None:
        text = pt.to_text(part)
        if part.maximum is not None and (part.maximum < part.minimum or part.maximum == 0):
            hint = "the minimum comes first, and the maximum is at least 1: A{2,3}."
            self._report(f"{text} can never match", part.span, hint)
        if pt.min_length(part.part) == 0 and part.maximum != 1:
            hint = "remove one of the quantifiers: (A B?)* instead of (A? B?)*."
            self._report(f"{text} repeats a group that can match zero rows", part.span, hint)

    def _bind_variables(self, pattern: pt.Pattern) -> dict[str, frozenset[str]]:
        """Return the variables of the pattern, and the members of subsets."""
        foreign = [
            name
            for p in pt.walk(pattern)
            if isinstance(p, pt.UnsupportedPattern)
            for name in p.names
        ]
        names = {name: frozenset([name]) for name in (*pt.variables(pattern), *foreign)}
        members_by_name = dict(names)
        for subset in self._clause("subsets"):
            subset_name, *members = (part.name.upper() for part in subset.expressions)
            for part in subset.expressions[1:]:
                self._find_variable(part, members_by_name)
            if subset_name in names:
                hint = f"give the subset another name: {subset_name}_2 = (…)."
                self._report(f"{subset_name} is already a variable of the pattern", subset, hint)
            names.setdefault(subset_name, frozenset(members) & frozenset(members_by_name))
        return names

    def _find_variable(self, name: exp.Expr, names: VariableSets) -> frozenset[str]:
        variables = names.get(name.name.upper())
        if variables is None:
            hint = did_you_mean(name.name, list(names), "variables of the pattern")
            self._report(f"the pattern has no variable {name.name}", name, hint)
        return variables or frozenset()

    def _bind_within(self) -> int | None:
        within = self.clause.args.get("within")
        if within is None:
            return None
        micros = ex.interval_micros(within)
        if micros is None or micros <= 0:
            self.context.report(
                "TG-105",
                "WITHIN must be a constant interval, greater than zero and without months",
                within,
                "WITHIN INTERVAL '10' MINUTE; months and years have no fixed length.",
            )
            return None
        return micros

    def _bind_partition(self) -> list[exp.Expr]:
        columns: list[exp.Expr] = []
        for part in self._clause("partition_by"):
            tree = RowResolver(self.context, self.scope).resolve(part)
            if not isinstance(tree, exp.Column):
                hint = "compute it in a subquery: FROM (SELECT …, lower(a) AS a FROM …)."
                self._report("PARTITION BY of MATCH_RECOGNIZE only takes columns", part, hint)
                continue
            columns.append(tree)
        return columns

    def _key_field(self, tree: exp.Expr) -> n.Field:
        input_field = fields_by_id(self.node.fields).get(tree.name)
        named_field = next((f for f in self.scope.fields if f.id == tree.name), input_field)
        if input_field is None or named_field is None:
            return n.Field(self.context.new_id("key"), "?")
        return n.Field(
            self.context.new_id(named_field.name),
            named_field.name,
            input_field.type,
            volatile=input_field.volatile,
            nullable=input_field.nullable,
        )

    def _bind_order(self) -> tuple[n.Field, list[exp.Expr]]:
        """Return the event time and all sort keys."""
        clause = self.clause.args.get("order")
        keys = list(clause.expressions) if clause is not None else []
        order = [RowResolver(self.context, self.scope).resolve(part) for part in keys]
        fields = fields_by_id(self.node.fields)
        times = [item for item in self.node.fields if item.is_event_time]
        key = order[0] if order else None
        column = key.this if isinstance(key, exp.Ordered) else key
        time = fields.get(column.name) if isinstance(column, exp.Column) else None
        descending = isinstance(key, exp.Ordered) and bool(key.args.get("desc"))
        if time is None or not time.is_event_time or descending:
            name = times[0].name if times else "ts"
            hint = f"ORDER BY {name}" if times else "declare an event time: WATERMARK FOR ts AS ts"
            self.context.report(
                "TG-421",
                "rows of a stream are matched in the order of event time, when the watermark "
                "passes them, so ORDER BY must start with the event time, ascending",
                clause if clause is not None else self.clause,
                f"{hint}.",
            )
        return time or n.Field("?", "?"), order

    def _bind_skip(self, pattern: pt.Pattern) -> n.Skip:
        after = self.clause.args.get("after")
        if after is None or after.name == "PAST LAST ROW":
            return n.Skip()
        if not isinstance(after, exp.Dot):
            return n.Skip(n.SkipTo.NEXT_ROW)
        to = n.SkipTo.FIRST if after.this.name == "TO FIRST" else n.SkipTo.LAST
        variables = self._find_variable(after.expression, self.names)
        name = after.expression.name
        if variables and not pt.always_occurs(pattern, variables):
            hint = "use AFTER MATCH SKIP PAST LAST ROW, or a variable that every match has."
            message = f"a match may have no row of {name} to which it could skip"
            self._report(message, after, hint)
        elif variables:
            first = pt.first_position(pattern, variables) or 0
            first_index = (
                first if to is n.SkipTo.FIRST else max(first, pt.last_position(pattern, variables))
            )
            if first_index == 0:
                hint = "use AFTER MATCH SKIP TO NEXT ROW, or PAST LAST ROW."
                message = (
                    f"AFTER MATCH SKIP {after.this.name} {name} would start at the same row again "
                    "and never advance"
                )
                self._report(message, after, hint)
        return n.Skip(to, variables)

    # Conditions

    def _expressions(self) -> MatchExpressions:
        return MatchExpressions(
            self.context, self.scope, self.names, fields_by_id(self.node.fields)
        )

    def _bind_conditions(self, pattern: pt.Pattern) -> tuple[n.DefineCondition, ...]:
        variables = {name: frozenset([name]) for name in pt.variables(pattern)}
        conditions: dict[str, n.DefineCondition] = {}
        for item in self._clause("define"):
            name = item.args["alias"]
            self._find_variable(name, variables)
            if name.name.upper() in conditions:
                hint = "combine the conditions with AND."
                self._report(f"{name.name} is defined twice", name, hint)
            conditions[name.name.upper()] = self._expressions().condition(
                name.name.upper(), item.this
            )
        return tuple(conditions[name] for name in variables if name in conditions)


@dataclass
class _Measures:
    """Collects the fields of a match: one for each value that a measure reads from its rows."""

    expressions: MatchExpressions
    time: n.Field
    bounded_delay: bool
    parts: list[n.Navigation | n.MatchAggregate] = field(default_factory=list)
    fields: list[n.Field] = field(default_factory=list)

    def rewrite(self, item: exp.Expr) -> exp.Expr:
        """Return a measure as an expression over these fields."""
        tree = self.expressions.resolve(item.this, measure=True)
        return self._rewrite(tree, item.alias)

    def _rewrite(self, tree: exp.Expr, name: str) -> exp.Expr:
        call = ex.call_name(tree)
        if call == "MATCH_ROWTIME":
            if any(part.name != self.time.id for part in tree.expressions):
                message = (
                    "MATCH_ROWTIME() is the event time of the last row and takes no other column"
                )
                self.expressions.context.report("TG-313", message, tree, "MATCH_ROWTIME()")
            role = n.Role.TIME if self.bounded_delay else n.Role.PLAIN
            return self._field(n.Navigation(column(self.time)), name, tree, role)
        if isinstance(tree, exp.Column) or call in NAVIGATION:
            return self._field(self.expressions.navigation(tree), name, tree)
        if ex.is_aggregate_call(tree):
            return self._field(self.expressions.aggregate(tree), name, tree)
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
        origin: exp.Expr,
        role: n.Role = n.Role.PLAIN,
    ) -> exp.Expr:
        for other, item in zip(self.parts, self.fields, strict=True):
            if other == part and item.role is role:
                return column(item, origin)
        measure = self.expressions.field(part, name, role)
        self.parts.append(part)
        self.fields.append(measure)
        return column(measure, origin)


def _count_steps(pattern: pt.Pattern) -> int:
    """Return the length of a pattern with expanded quantifiers."""
    if isinstance(pattern, pt.Concatenation | pt.Alternation):
        return sum(map(_count_steps, pattern.parts))
    if isinstance(pattern, pt.Repetition):
        return max(pattern.minimum, pattern.maximum or 1, 1) * _count_steps(pattern.part)
    return 1


def _pattern_span(pattern: pt.Pattern) -> Span | None:
    spans = [part.span for part in pt.walk(pattern) if hasattr(part, "span")]
    if not spans:
        return None
    return Span(min(span.start for span in spans), max(span.end for span in spans))
