"""MATCH_RECOGNIZE: the values that its operator reads, and the operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW
from tidegate.physical.canonical_form import CanonicalWriter, canonical_ttl
from tidegate.physical.expressions import CallPlan, ordered_by, ordering, plan_call
from tidegate.physical.join import closing_sql
from tidegate.physical.match_conditions import UNKNOWN, known_type, scalar_of
from tidegate.physical.operator_kind import (
    BuildContext,
    BuiltOperator,
    OperatorKind,
    Rejection,
    Unrunnable,
)
from tidegate.physical.stage_sql import PortColumns, SqlWriter, column_sql, unix_micros_sql
from tidegate.physical.typed import Operands, Types
from tidegate.plan import nodes as n
from tidegate.plan.bind.scope import fields_by_id, infer_type
from tidegate.sql import match_recognize as pt
from tidegate.sql.dialect import own_span, to_sql
from tidegate.sql.quoting import quote_identifier
from tidegate.types import ChangelogKind, format_duration_us

if TYPE_CHECKING:
    from tidegate.operators.late_rows import LateRowFormat
    from tidegate.operators.match.matcher import (
        AggregateMeasure,
        MatchOperator,
        MatchSpec,
        RowMeasure,
    )
    from tidegate.operators.match.search import (
        CompiledCondition,
        ConditionInput,
        Program,
        RunningAggregate,
        Step,
    )


# ---- A row pattern as a program, with conditions and measures over numbered values of rows.

_RUNNING = ("count", "sum", "avg", "min", "max")
# The sum of decimals of this precision needs ten more digits.
_MOST_SUMMED = 28


def require_translatable(node: n.Match) -> None:
    """Reject conditions that cannot run whatever the types turn out to be."""
    fields = fields_by_id(node.input.fields)
    for item in node.conditions:
        sql_types = []
        for part in item.parts:
            if isinstance(part, n.MatchAggregate):
                _running_call(part, node.input)
                sql_types.append(UNKNOWN)
            else:
                sql_types.append(known_type(infer_type(part.value, fields)))
        scalar_of(item.variable, item.tree, sql_types)


@dataclass
class MatchPlan:
    """Numbers variables and values in the order of use; `values` are their SQL."""

    node: n.Match
    types: Types
    values: list[str] = field(default_factory=list)
    groups: list[frozenset[int]] = field(default_factory=list)

    def numbers(self, variables: frozenset[str] | None) -> frozenset[int]:
        """Return variables by number; None means all of them."""
        names = pt.variables(self.node.pattern)
        return frozenset(
            i for i, name in enumerate(names) if variables is None or name in variables
        )

    @property
    def skip(self) -> str:
        from tidegate.operators.match import matcher as match

        return {
            n.SkipTo.PAST_LAST_ROW: match.PAST_LAST_ROW,
            n.SkipTo.NEXT_ROW: match.NEXT_ROW,
            n.SkipTo.FIRST: match.TO_FIRST,
            n.SkipTo.LAST: match.TO_LAST,
        }[self.node.skip.to]

    def program(self) -> Program:
        from tidegate.operators.match.search import Program

        names = pt.variables(self.node.pattern)
        by_name = {item.variable: item for item in self.node.conditions}
        conditions = tuple(
            self._condition(by_name[name]) if name in by_name else None for name in names
        )
        steps, start = compiled(self.node.pattern)
        return Program(steps, start, conditions, tuple(self.groups), self.node.within_us)

    def measures(self) -> tuple[RowMeasure | AggregateMeasure, ...]:
        fields = self.node.fields[len(self.node.partition) :]
        pairs = zip(fields, self.node.measures, strict=True)
        return tuple(self._measure(item, part) for item, part in pairs)

    # Values

    def _value(self, sql: str) -> int:
        if sql not in self.values:
            self.values.append(sql)
        return self.values.index(sql)

    def _group(self, variables: frozenset[str] | None) -> int:
        group = self.numbers(variables)
        if group not in self.groups:
            self.groups.append(group)
        return self.groups.index(group)

    def _measure(
        self, item: n.Field, part: n.Navigation | n.MatchAggregate
    ) -> RowMeasure | AggregateMeasure:
        from tidegate.operators.aggregate.functions import AggregateCall
        from tidegate.operators.match.matcher import AggregateMeasure, RowMeasure

        group, result = self.numbers(part.variables), self.types.of(quote_identifier(item.id))
        if isinstance(part, n.Navigation):
            value = self._value(to_sql(part.value))
            return RowMeasure(value, result, group, part.last, part.offset, part.back)
        call_plan = plan_call(part.call, self.node.input)
        texts = call_plan.argument_sql
        arguments = tuple(self.types.all(texts))
        call = AggregateCall(
            call_plan.function,
            call_plan.text,
            arguments,
            result,
            call_plan.distinct,
            call_plan.filtered,
            call_plan.constants,
        )
        return AggregateMeasure(call, tuple(map(self._value, texts)), group)

    # Conditions

    def _condition(self, item: n.DefineCondition) -> CompiledCondition:
        from tidegate.operators.match.search import CompiledCondition

        parts = [self._part(part) for part in item.parts]
        test = scalar_of(item.variable, item.tree, [sql_type for _, sql_type in parts])
        return CompiledCondition(test, tuple(part for part, _ in parts))

    def _part(self, part: n.Navigation | n.MatchAggregate) -> tuple[ConditionInput, str]:
        from tidegate.operators.match.search import CurrentValue, NavigatedValue

        if isinstance(part, n.MatchAggregate):
            return self._running(part)
        sql = to_sql(part.value)
        value, sql_type = self._value(sql), known_type(self.types.name(sql))
        if sql_type == UNKNOWN:
            message = f"values of type {self.types.name(sql)} cannot be compared across rows"
            hint = "read a part of it, or to_json(…) of it."
            raise Unrunnable(Rejection(message, hint, own_span(part.value)))
        missing = None if part.missing is None else self._value(to_sql(part.missing))
        if part.is_current:
            return CurrentValue(value, part.back, missing), sql_type
        group = self._group(part.variables)
        return NavigatedValue(value, group, part.last, part.offset, part.back, missing), sql_type

    def _running(self, part: n.MatchAggregate) -> tuple[RunningAggregate, str]:
        from tidegate.operators.match.search import RunningAggregate

        call = _running_call(part, self.node.input)
        group, result = self._group(part.variables), known_type(self.types.name(to_sql(part.call)))
        if not call.arguments and call.filter is None:
            return RunningAggregate(call.function, group), result
        (sql,) = call.argument_sql
        sql_type = known_type(self.types.name(sql))
        if not _adds_up(call, sql_type):
            raise _unrunnable(part, f"{call.text} over {self.types.name(sql)} cannot run in DEFINE")
        zero: object = 0
        if result == "DOUBLE" and call.function != "avg":
            zero = 0.0
        elif result.startswith("DECIMAL"):
            zero = Decimal(0)
        elif sql_type in ("DOUBLE", "FLOAT"):
            zero = 0.0
        doubles = sql_type in ("DOUBLE", "FLOAT")
        bits = 64 if call.function == "sum" and result == "BIGINT" else 0
        return RunningAggregate(call.function, group, self._value(sql), zero, doubles, bits), result


def _running_call(part: n.MatchAggregate, below: n.Node) -> CallPlan:
    """Plan an aggregate that can be computed row by row; raise Unrunnable otherwise."""
    call = plan_call(part.call, below)
    if call.function not in _RUNNING or call.distinct or len(call.argument_sql) > 1:
        raise _unrunnable(part, f"{call.text} cannot run in DEFINE")
    return call


def _adds_up(call: CallPlan, sql_type: str) -> bool:
    """Return whether a running aggregate over a type gives the same result as Spark."""
    if call.function == "count":
        return True
    if call.function in ("min", "max"):
        return sql_type != UNKNOWN
    whole = sql_type in ("TINYINT", "SMALLINT", "INT", "BIGINT")
    if whole or sql_type in ("DOUBLE", "FLOAT"):
        return True
    digits = (
        int(sql_type[8:].partition(",")[0]) if sql_type.startswith("DECIMAL(") else _MOST_SUMMED + 1
    )
    return call.function == "sum" and digits <= _MOST_SUMMED


def _unrunnable(part: n.MatchAggregate, message: str) -> Unrunnable:
    hint = "count, sum, avg, min and max of numbers run in DEFINE; cast, as in CAST(x AS DOUBLE)."
    return Unrunnable(Rejection(message, hint, own_span(part.call)))


# Patterns


def compiled(pattern: pt.Pattern) -> tuple[tuple[Step, ...], int]:
    """Compile a pattern into steps; return them and the first one."""
    from tidegate.operators.match.search import Accept

    compiler = _Compiler(pt.variables(pattern), [Accept()])
    start = compiler.add(pattern, 0)
    return tuple(compiler.steps), start


@dataclass
class _Compiler:
    """Compiles a pattern from back to front, so that each part knows its next step."""

    names: Sequence[str]
    steps: list[Step]

    def add(self, pattern: pt.Pattern, then: int) -> int:
        """Add a part that continues with the step `then`; return its first step."""
        from tidegate.operators.match.search import Take

        if isinstance(pattern, pt.Variable):
            return self._new(Take(self.names.index(pattern.name), then))
        if isinstance(pattern, pt.Concatenation):
            for part in reversed(pattern.parts):
                then = self.add(part, then)
            return then
        if isinstance(pattern, pt.Alternation):
            alternatives = [self.add(part, then) for part in pattern.parts]
            step = alternatives.pop()
            for alternative in reversed(alternatives):
                step = self._fork(alternative, step, False)
            return step
        assert isinstance(pattern, pt.Repetition), "unsupported syntax was rejected before"
        return self._repeat(pattern, then)

    def _repeat(self, pattern: pt.Repetition, then: int) -> int:
        if pattern.maximum is None:
            # The loop needs its number before its body is compiled.
            loop = self._new(self.steps[0])
            again = self.add(pattern.part, loop)
            first, second = (then, again) if pattern.reluctant else (again, then)
            self.steps[loop] = _fork(first, second)
            step = loop
        else:
            step = then
            for _ in range(pattern.maximum - pattern.minimum):
                step = self._fork(self.add(pattern.part, step), then, pattern.reluctant)
        for _ in range(pattern.minimum):
            step = self.add(pattern.part, step)
        return step

    def _new(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def _fork(self, first: int, second: int, swapped: bool) -> int:
        return self._new(_fork(second, first) if swapped else _fork(first, second))


def _fork(first: int, second: int) -> Step:
    from tidegate.operators.match.search import Fork

    return Fork(first, second)


# Operand types and rejections


def operands(node: n.Match) -> Iterator[Operands]:
    texts = [*(to_sql(tree) for tree in node.partition), *(ordered_by(o) for o in node.order)]
    totals = []
    for part in _parts(node):
        if isinstance(part, n.Navigation):
            texts += [to_sql(tree) for tree in part.trees]
        else:
            texts += plan_call(part.call, node.input).argument_sql
            totals.append(to_sql(part.call))
    yield Operands((node.input,), tuple(texts))
    yield Operands((node.input,), tuple(totals))


def _parts(node: n.Match) -> list[n.Navigation | n.MatchAggregate]:
    return [*(part for item in node.conditions for part in item.parts), *node.measures]


def rejections(node: n.Match) -> Iterator[Rejection]:
    if node.input.changelog is not ChangelogKind.APPEND:
        yield Rejection(
            "MATCH_RECOGNIZE over rows that are retracted cannot run",
            "match append-only rows: those of a source, or of windows with EMIT ON WINDOW CLOSE.",
        )
    for part in _parts(node):
        try:
            if isinstance(part, n.MatchAggregate):
                plan_call(part.call, node.input)
        except Unrunnable as error:
            yield error.rejection
            return
    try:
        require_translatable(node)
    except Unrunnable as error:
        yield error.rejection


def output_watermark_delay_us(node: n.Match) -> int | None:
    """Return the delay of the output: open matches are at most as old as WITHIN."""
    return node.within_us or 0


def emits_only_at_end(node: n.Match, has_watermark: bool) -> bool:
    return not has_watermark


def operator_name(node: n.Match) -> str:
    return "match"


def describe(node: n.Match) -> str:
    within = f" within {format_duration_us(node.within_us)}" if node.within_us is not None else ""
    by = ", ".join(part.name for part in node.key_fields)
    return (
        f"Match {pt.to_text(node.pattern)}{within}"
        + (f" by {by}" if by else "")
        + f", then skip {node.skip}"
    )


def canonical_form(node: n.Match, writer: CanonicalWriter) -> list[str]:
    parts = [
        "["
        + " ".join(
            [item.variable, writer.text(item.tree), *(_words(p, writer) for p in item.parts)]
        )
        + "]"
        for item in node.conditions
    ]
    words = [
        writer.texts(node.partition),
        writer.texts(node.order),
        f"({pt.to_text(node.pattern)})",
    ]
    words += [str(node.skip), f"within={node.within_us}", *parts]
    return [*words, *(_words(part, writer) for part in node.measures), *canonical_ttl(node)]


def _words(part: n.Navigation | n.MatchAggregate, writer: CanonicalWriter) -> str:
    of = "*" if part.variables is None else "|".join(sorted(part.variables))
    if isinstance(part, n.MatchAggregate):
        return f"{of}:{writer.text(part.call)}"
    way = f"{'last' if part.last else 'first'}{part.offset}-{part.back}"
    missing = "" if part.missing is None else f"?{writer.text(part.missing)}"
    return f"{of}:{way}:{writer.text(part.value)}{missing}"


def sql(node: n.Match, writer: SqlWriter) -> str:
    """Return a query with the columns of a match and their types; its rows do not matter."""
    trees = [f"any_value({to_sql(tree)})" for tree in node.partition]
    trees += [
        f"any_value({to_sql(part.value)})" if isinstance(part, n.Navigation) else to_sql(part.call)
        for part in node.measures
    ]
    columns = [
        f"{text} AS {quote_identifier(item.id)}"
        for item, text in zip(node.fields, trees, strict=True)
    ]
    return f"SELECT {', '.join(columns)} FROM {writer.child(node.input)}"


# Building


def build(node: n.Match, context: BuildContext) -> BuiltOperator:
    from tidegate.columns import STORE_TIME
    from tidegate.operators.match.matcher import TIME, MatchOperator

    columns, types = PortColumns(), context.types
    plan = MatchPlan(node, types)
    spec = _spec(node, plan, types)
    item = node.time_field
    columns.add(STORE_TIME, closing_sql(item) + (" + 1L" if item.role is n.Role.TIME else ""))
    columns.add(TIME, unix_micros_sql(quote_identifier(item.id)))
    columns.add_all("k", [to_sql(part) for part in node.partition])
    columns.add_all("o", [ordered_by(part) for part in node.order[1:]])
    columns.add_all("v", plan.values)
    columns.add(ARRIVAL_FILE, ARRIVAL_FILE)
    columns.add(ARRIVAL_ROW, ARRIVAL_ROW)
    operator = MatchOperator(spec, node.ttl_us, limits=context.limits, name=operator_name(node))
    if context.keeps_late:
        columns.add_all("l", column_sql(node.input))
        operator = replace(operator, late_rows=_late(operator, node, types))
    return BuiltOperator(
        operator, (columns.port(node.input, hash_columns=columns.keys, arrival=True),)
    )


def _late(operator: MatchOperator, node: n.Match, types: Types) -> LateRowFormat:
    """Return late rows unchanged."""
    from tidegate.operators.late_rows import LateRowFormat

    return LateRowFormat(operator.name, operator.arrival_schema, tuple(types.columns(node.input)))


def _spec(node: n.Match, plan: MatchPlan, types: Types) -> MatchSpec:
    from tidegate.operators.match.matcher import MatchSpec

    program, measures = plan.program(), plan.measures()
    spec = MatchSpec(
        tuple(types.all([to_sql(part) for part in node.partition])),
        tuple(ordering(part, types) for part in node.order[1:]),
        tuple(types.all(plan.values)),
        program,
        measures,
        plan.skip,
        plan.numbers(node.skip.variables),
        node.rows_back,
    )
    # Reject an aggregate that cannot run now, not at the first match.
    assert spec.measure_evaluator.aggregator is not None, "all calls share one aggregator"
    return spec


KIND = OperatorKind(
    name=operator_name,
    describe=describe,
    build=build,
    canonical_form=canonical_form,
    sql=sql,
    operands=operands,
    rejections=rejections,
    output_watermark_delay_us=output_watermark_delay_us,
    emits_only_at_end=emits_only_at_end,
)
