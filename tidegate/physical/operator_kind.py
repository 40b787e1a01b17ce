"""The interface of the physical layer to each kind of stateful node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.physical.typed import Operands, Types
from tidegate.plan import nodes as n
from tidegate.types import Span

if TYPE_CHECKING:
    from tidegate.operators.operator import Limits, Operator
    from tidegate.physical.canonical_form import CanonicalWriter
    from tidegate.physical.stage_sql import PortSchema, SqlWriter
    from tidegate.plan.nodes import Node


# ---- Why a node cannot run


@dataclass(frozen=True)
class Rejection:
    """The reason and a hint. `span` is the part of the SQL at fault; None for the whole node."""

    message: str
    hint: str | None = None
    span: Span | None = None


class Unrunnable(Exception):
    """Raised for a node that cannot run for a reason found during physical planning."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.message)
        self.rejection = rejection
        # The node, set by the planner.
        self.node: Node | None = None


@dataclass(frozen=True)
class BuildContext:
    """The arguments for building an operator, in addition to its node."""

    types: Types
    limits: Limits
    # True if late rows are emitted to a late stream.
    keeps_late: bool = False


@dataclass(frozen=True, eq=False)
class BuiltOperator:
    """An operator with its input ports."""

    operator: Operator
    ports: tuple[PortSchema, ...]
    # True for processing-time windows: the time of the epoch replaces the watermark.
    by_processing_time: bool = False


def _never(node: Any, has_watermark: bool) -> bool:
    return False


def _zero(node: Any) -> int | None:
    return 0


def _none(node: Any) -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True, kw_only=True)
class OperatorKind:
    """What the physical layer knows about a kind of stateful node. `registry` lists all kinds."""

    name: Callable[[Any], str]
    describe: Callable[[Any], str]
    build: Callable[[Any, BuildContext], BuiltOperator]
    # The canonical form of its state, without that of its inputs.
    canonical_form: Callable[[Any, CanonicalWriter], list[str]]
    # The node as Spark SQL for type analysis: columns and types are correct, rows need not be.
    sql: Callable[[Any, SqlWriter], str]
    # The expressions whose types `build` needs.
    operands: Callable[[Any], Iterator[Operands]] = _none
    # Why a node of this kind cannot run.
    rejections: Callable[[Any], Iterator[Rejection]] = _none
    # How far output rows can be behind the watermark. None: unknown, so the node is rejected.
    output_watermark_delay_us: Callable[[Any], int | None] = _zero
    # True if the node emits all or some of its rows only when its input ends. The second argument
    # is whether its inputs have watermarks.
    emits_only_at_end: Callable[[Any, bool], bool] = _never
    # True if the node supports EMIT EVERY.
    supports_emit_every: bool = field(default=False)


def _of_stages(node: Any, writer: Any) -> Any:
    raise AssertionError("stateless nodes have no operator")


def unsupported(
    name: Callable[[Any], str],
    describe: Callable[[Any], str],
    rejection: Callable[[Any], Rejection],
    canonical_form: Callable[[Any, CanonicalWriter], list[str]] = _of_stages,
    sql: Callable[[Any, SqlWriter], str] = _of_stages,
) -> OperatorKind:
    """Return the kind of a node that is not supported yet; `rejection` states what to write."""

    def reject(node: n.Node) -> Iterator[Rejection]:
        yield rejection(node)

    def build(node: n.Node, context: BuildContext) -> BuiltOperator:
        raise AssertionError(f"{name(node)} was rejected")

    return OperatorKind(
        name=name,
        describe=describe,
        build=build,
        canonical_form=canonical_form,
        sql=sql,
        rejections=reject,
    )
