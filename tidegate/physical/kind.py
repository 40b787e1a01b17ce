"""What the physical layer asks of every kind of node that keeps state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.physical.refusal import Refusal
from tidegate.physical.typed import Operands, Types
from tidegate.plan import nodes as n

if TYPE_CHECKING:
    from tidegate.operators.operator import Limits, Operator
    from tidegate.physical.meaning import Words
    from tidegate.physical.ports import PortPlan
    from tidegate.physical.stage_sql import SqlWriter


@dataclass(frozen=True)
class Request:
    """What an operator is built with besides its node."""

    types: Types
    limits: Limits
    # Whether somebody wants the rows that come too late for it.
    keeps_late: bool = False


@dataclass(frozen=True, eq=False)
class Built:
    """An operator with what feeds it."""

    operator: Operator
    ports: tuple[PortPlan, ...]
    # Windows of processing time: the clock of the epochs takes the place of the watermark.
    by_clock: bool = False


def _never(node: Any, has_watermark: bool) -> bool:
    return False


def _zero(node: Any) -> int | None:
    return 0


def _none(node: Any) -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True, kw_only=True)
class OperatorKind:
    """One module per operator fills this in; `registry` lists them."""

    name: Callable[[Any], str]
    describe: Callable[[Any], str]
    build: Callable[[Any, Request], Built]
    # What its state means, besides what is below it.
    meaning: Callable[[Any, Words], list[str]]
    # The node over its inputs as Spark SQL: the columns and types are right, the rows may not be.
    sql: Callable[[Any, SqlWriter], str]
    # The expressions whose types it must know.
    operands: Callable[[Any], Iterator[Operands]] = _none
    # Why a node of this kind cannot run.
    refusals: Callable[[Any], Iterator[Refusal]] = _none
    # How far behind the watermark the times of rows can be that come out after it; None: nobody
    # can tell, and it refuses the node.
    held_back_us: Callable[[Any], int | None] = _zero
    # Whether neither an epoch nor the watermark makes a node give something out.
    waits_for_end: Callable[[Any, bool], bool] = _never
    # Whether it can hold its changes back for EMIT EVERY.
    takes_every: bool = field(default=False)


def _of_stages(node: Any, to: Any) -> Any:
    raise AssertionError("stages have such nodes too, and print them")


def unbuilt(
    name: Callable[[Any], str],
    describe: Callable[[Any], str],
    meaning: Callable[[Any, Words], list[str]] = _of_stages,
    sql: Callable[[Any, SqlWriter], str] = _of_stages,
) -> OperatorKind:
    """A kind of node that the language knows and that cannot run yet."""

    def refuse(node: n.Node) -> Iterator[Refusal]:
        yield Refusal(
            f"the operator {name(node)} cannot run yet",
            "projections, filters, UNION ALL, LATERAL VIEW, windows, aggregates, DISTINCT, top-N, "
            "OVER, interval, window, regular, temporal and ASOF joins run.",
        )

    def build(node: n.Node, request: Request) -> Built:
        raise AssertionError(f"{name(node)} was refused")

    return OperatorKind(
        name=name, describe=describe, build=build, meaning=meaning, sql=sql, refusals=refuse
    )
