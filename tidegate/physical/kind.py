"""What the physical layer asks of every kind of node that keeps state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.physical.refusal import Refusal
from tidegate.physical.typed import Operands, Types
from tidegate.plan import nodes as n

if TYPE_CHECKING:
    from tidegate.operators.contract import Operator
    from tidegate.operators.limits import Limits
    from tidegate.physical.ports import PortPlan


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
    # How far behind the watermark the times of rows can be that come out after it.
    held_back_us: int = 0


def _never(node: Any, has_watermark: bool) -> bool:
    return False


def _none(node: Any) -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True)
class OperatorKind:
    """One module an operator fills this in; `registry` lists them."""

    name: Callable[[Any], str]
    describe: Callable[[Any], str]
    build: Callable[[Any, Request], Built]
    # The expressions whose types it must know.
    operands: Callable[[Any], Iterator[Operands]] = _none
    # Why a node of this kind cannot run.
    refusals: Callable[[Any], Iterator[Refusal]] = _none
    # Whether neither an epoch nor the watermark makes a node give something out.
    waits_for_end: Callable[[Any, bool], bool] = _never
    # Whether it can hold its changes back for EMIT EVERY.
    takes_every: bool = field(default=False)


def unbuilt(name: Callable[[Any], str], describe: Callable[[Any], str]) -> OperatorKind:
    """A kind of node that the language knows and that cannot run yet."""

    def refuse(node: n.Node) -> Iterator[Refusal]:
        yield Refusal(
            f"the operator {name(node)} cannot run yet",
            "projections, filters, UNION ALL, LATERAL VIEW, windows, aggregates, DISTINCT, top-N, "
            "interval, window and regular joins run.",
        )

    def build(node: n.Node, request: Request) -> Built:
        raise AssertionError(f"{name(node)} was refused")

    return OperatorKind(name, describe, build, refusals=refuse)
