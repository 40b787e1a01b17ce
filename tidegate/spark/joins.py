"""Joins from plan nodes: both sides get the same keys, in a type that holds both."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType, NumericType

from tidegate.errors import RunError
from tidegate.operators.change_join import ChangeJoin
from tidegate.operators.group_kernels import PANE, WEIGHT
from tidegate.operators.limits import Limits
from tidegate.operators.matching import Matching
from tidegate.operators.timed_join import TimedJoin
from tidegate.physical.aggregates import WEIGHT_SQL, in_words
from tidegate.physical.joins import JoinPlan, plan_join
from tidegate.physical.stage_sql import carries_op, quoted
from tidegate.plan import nodes as n
from tidegate.spark.ports import Built, Columns, PortInput, Types, hash_columns
from tidegate.sql.dialect import to_sql


def build_join(node: n.Join, types: Types, limits: Limits) -> Built:
    """The operator of a join, and what feeds its two ports."""
    plan = plan_join(node)
    left = [to_sql(pair.left) for pair in plan.pairs]
    right = [to_sql(pair.right) for pair in plan.pairs]
    kinds = _common(plan, types, left, right)
    columns = (tuple(types.columns(node.left)), tuple(types.columns(node.right)))
    operator = _operator(plan, tuple(types.arrow(kind) for kind in kinds), columns, limits)
    ports = tuple(_port(plan, port, keys, kinds, types) for port, keys in enumerate((left, right)))
    return Built(operator, ports, held_back_us=plan.held_back_us)


def _operator(
    plan: JoinPlan,
    keys: tuple[pa.DataType, ...],
    columns: tuple[tuple[pa.DataType, ...], tuple[pa.DataType, ...]],
    limits: Limits,
) -> TimedJoin | ChangeJoin:
    node = plan.node
    safe = tuple(pair.null_safe for pair in plan.pairs)
    matching = Matching(keys, safe, plan.lower_us, plan.upper_us)
    named: dict[str, Any] = {
        "limits": limits,
        "meaning": _meaning(plan),
        "name": f"{node.kind.value}_join",
    }
    if not plan.changes:
        assert plan.step_us is not None, "rows have times"
        return TimedJoin(matching, columns, node.how, plan.step_us, node.at_close, **named)
    if carries_op(node) and any(pa.types.is_nested(kind) for side in columns for kind in side):
        raise RunError(
            "TG-501",
            f"{node.label()}: rows with arrays, maps or structs that can be taken back cannot be "
            "joined yet",
            hint="leave such columns out, or turn them into text with to_json(…).",
        )
    ttl = node.ttl_us if plan.step_us is None else None
    retracts = any(plan.retracts)
    return ChangeJoin(
        matching,
        columns,
        node.how,
        retracts,
        plan.step_us,
        ttl,
        plan.at_end,
        carries_op(node),
        **named,
    )


def _meaning(plan: JoinPlan) -> tuple[str, ...]:
    node = plan.node
    keys = [
        f"{in_words(pair.left, node.left)} = {in_words(pair.right, node.right)}"
        for pair in plan.pairs
    ]
    names = [item.name for side in node.inputs for item in side.fields]
    return (*keys, *(plan.times or ()), *names)


def _common(plan: JoinPlan, types: Types, left: list[str], right: list[str]) -> list[DataType]:
    """The type in which each pair of keys is compared, as Spark would."""
    node = plan.node
    common = []
    pairs = zip(types.spark_of(node.left, left), types.spark_of(node.right, right), strict=True)
    for place, (one, other) in enumerate(pairs):
        numbers = isinstance(one, NumericType) and isinstance(other, NumericType)
        times = all("timestamp" in kind.simpleString() for kind in (one, other))
        if one != other and not numbers and not times:
            raise RunError(
                "TG-501",
                f"{left[place]} = {right[place]}: a join of {one.simpleString().upper()} with "
                f"{other.simpleString().upper()} cannot run yet".replace("`", ""),
                hint="CAST one side to the type of the other.",
            )
        kind = one if one == other else types.widest(one, other)
        if pa.types.is_nested(types.arrow(kind)):
            raise RunError(
                "TG-501",
                f"{left[place]}: a join by {kind.simpleString()} cannot run yet".replace("`", ""),
                hint="join by the parts of it, or by to_json(…).",
            )
        common.append(kind)
    return common


def _port(
    plan: JoinPlan, port: int, keys: list[str], kinds: list[DataType], types: Types
) -> PortInput:
    side = plan.node.inputs[port]
    columns = Columns()
    if plan.times is not None:
        columns.add(PANE, plan.times[port])
    found = types.spark_of(side, keys)
    cast = [
        key if one == kind else f"CAST({key} AS {kind.simpleString()})"
        for key, one, kind in zip(keys, found, kinds, strict=True)
    ]
    for index, key in enumerate(cast):
        columns.add(f"k{index}", key)
    for index, item in enumerate(side.fields):
        columns.add(f"c{index}", quoted(item.id))
    if any(plan.retracts):
        columns.add(WEIGHT, WEIGHT_SQL if plan.retracts[port] else "1L")
    hashed = hash_columns(columns, cast, [types.arrow(kind) for kind in kinds])
    return columns.port(side, hashed=hashed)
