"""MATCH_RECOGNIZE: what its operator reads of rows, and the operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW
from tidegate.physical.calls import plan_call
from tidegate.physical.join import closing_sql
from tidegate.physical.kind import Built, OperatorKind, Request
from tidegate.physical.match_program import MatchPlan, require_translatable
from tidegate.physical.meaning import Words, ttl_words
from tidegate.physical.order_by import ordered_by, ordering
from tidegate.physical.ports import Columns, column_sql
from tidegate.physical.refusal import Refusal, Unrunnable
from tidegate.physical.stage_sql import SqlWriter, micros
from tidegate.physical.typed import Operands, Types
from tidegate.plan import nodes as n
from tidegate.sql import match_recognize as pt
from tidegate.sql.dialect import to_sql
from tidegate.sql.quoting import quoted
from tidegate.types import ChangelogKind, format_duration

if TYPE_CHECKING:
    from tidegate.operators.late_rows import LateRows
    from tidegate.operators.match.matcher import Match, MatchSpec


# What it needs to know, and what it refuses


def operands(node: n.Match) -> Iterator[Operands]:
    texts = [*(to_sql(tree) for tree in node.partition), *(ordered_by(o) for o in node.order)]
    totals = []
    for part in _parts(node):
        if isinstance(part, n.Pick):
            texts += [to_sql(tree) for tree in part.trees]
        else:
            texts += plan_call(part.call, node.input).argument_sql
            totals.append(to_sql(part.call))
    yield Operands((node.input,), tuple(texts))
    yield Operands((node.input,), tuple(totals))


def _parts(node: n.Match) -> list[n.Pick | n.Total]:
    return [*(part for item in node.conditions for part in item.parts), *node.measures]


def refusals(node: n.Match) -> Iterator[Refusal]:
    if node.input.changelog is not ChangelogKind.APPEND:
        yield Refusal(
            "MATCH_RECOGNIZE over rows that are retracted cannot run",
            "match rows that stay: those of a source, or of windows with EMIT ON WINDOW CLOSE.",
        )
    for part in _parts(node):
        try:
            if isinstance(part, n.Total):
                plan_call(part.call, node.input)
        except Unrunnable as error:
            yield error.refusal
            return
    try:
        require_translatable(node)
    except Unrunnable as error:
        yield error.refusal


def held_back_us(node: n.Match) -> int | None:
    """Rows of open matches are no older than WITHIN; where nothing goes by time, none counts."""
    return node.within_us or 0


def waits_for_end(node: n.Match, has_watermark: bool) -> bool:
    return not has_watermark


def operator_name(node: n.Match) -> str:
    return "match"


def describe(node: n.Match) -> str:
    within = f" within {format_duration(node.within_us)}" if node.within_us is not None else ""
    by = ", ".join(part.name for part in node.key_fields)
    return (
        f"Match {pt.text_of(node.pattern)}{within}"
        + (f" by {by}" if by else "")
        + f", then skip {node.skip}"
    )


def meaning(node: n.Match, to: Words) -> list[str]:
    parts = [
        "["
        + " ".join([item.variable, to.text(item.tree), *(_words(p, to) for p in item.parts)])
        + "]"
        for item in node.conditions
    ]
    words = [to.texts(node.partition), to.texts(node.order), f"({pt.text_of(node.pattern)})"]
    words += [str(node.skip), f"within={node.within_us}", *parts]
    return [*words, *(_words(part, to) for part in node.measures), *ttl_words(node)]


def _words(part: n.Pick | n.Total, to: Words) -> str:
    of = "*" if part.variables is None else "|".join(sorted(part.variables))
    if isinstance(part, n.Total):
        return f"{of}:{to.text(part.call)}"
    way = f"{'last' if part.last else 'first'}{part.offset}-{part.back}"
    missing = "" if part.missing is None else f"?{to.text(part.missing)}"
    return f"{of}:{way}:{to.text(part.value)}{missing}"


def sql(node: n.Match, to: SqlWriter) -> str:
    """The columns have the right types; the rows do not matter."""
    trees = [f"any_value({to_sql(tree)})" for tree in node.partition]
    trees += [
        f"any_value({to_sql(part.value)})" if isinstance(part, n.Pick) else to_sql(part.call)
        for part in node.measures
    ]
    columns = [
        f"{text} AS {quoted(item.id)}" for item, text in zip(node.fields, trees, strict=True)
    ]
    return f"SELECT {', '.join(columns)} FROM {to.child(node.input)}"


# Building


def build(node: n.Match, request: Request) -> Built:
    from tidegate.operators.aggregate.groups import PANE
    from tidegate.operators.match.matcher import TIME, Match

    columns, types = Columns(), request.types
    plan = MatchPlan(node, types)
    spec = _spec(node, plan, types)
    item = node.time_field
    columns.add(PANE, closing_sql(item) + (" + 1L" if item.role is n.Role.TIME else ""))
    columns.add(TIME, micros(quoted(item.id)))
    columns.add_all("k", [to_sql(part) for part in node.partition])
    columns.add_all("o", [ordered_by(part) for part in node.order[1:]])
    columns.add_all("v", plan.values)
    columns.add(ARRIVAL_FILE, ARRIVAL_FILE)
    columns.add(ARRIVAL_ROW, ARRIVAL_ROW)
    operator = Match(spec, node.ttl_us, limits=request.limits, name=operator_name(node))
    if request.keeps_late:
        columns.add_all("l", column_sql(node.input))
        operator = replace(operator, late_rows=_late(operator, node, types))
    return Built(operator, (columns.port(node.input, hashed=columns.keys, arrival=True),))


def _late(operator: Match, node: n.Match, types: Types) -> LateRows:
    """What comes too late is kept as it was."""
    from tidegate.operators.late_rows import LateRows

    return LateRows(operator.name, operator.arrived, tuple(types.columns(node.input)))


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
    # An aggregate that cannot run is refused now, and not when there is a match.
    assert spec.results.groups is not None, "it is made from all calls"
    return spec


KIND = OperatorKind(
    name=operator_name,
    describe=describe,
    build=build,
    meaning=meaning,
    sql=sql,
    operands=operands,
    refusals=refusals,
    held_back_us=held_back_us,
    waits_for_end=waits_for_end,
)
