"""UNION, INTERSECT, EXCEPT."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tidegate.plan.nodes.base import APPEND, CHANGELOG, Key, Node, rows_kept
from tidegate.plan.nodes.fields import Field, Role
from tidegate.plan.nodes.once import once
from tidegate.plan.nodes.window import Hold
from tidegate.types import ChangelogKind


def _hold_of(node: Node) -> Hold | None:
    """What its rows wait in, if they wait for nothing but the watermark."""
    while node.stateless and len(node.inputs) == 1:
        (node,) = node.inputs
    return node if isinstance(node, Hold) else None


def _end_for_all(fields: tuple[Field, ...], held: list[Hold | None]) -> Field | None:
    """The column that says until when rows wait, if all wait for the same kind of moment."""
    first = held[0]
    if first is None or any(hold is None or hold.spec != first.spec for hold in held):
        return None
    role = Role.TIME if first.spec is None else Role.WINDOW_END
    found = (item for item in fields if item.role is role and item.window == first.spec)
    return next(found, None)


@dataclass(frozen=True, eq=False)
class SetOperation(Node):
    """UNION [ALL], INTERSECT, EXCEPT; columns line up by position."""

    members: tuple[Node, ...] = field(kw_only=True)
    operation: str = field(kw_only=True)
    all: bool = field(kw_only=True)
    ttl_us: int | None = field(default=None, kw_only=True)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.members

    def with_inputs(self, *inputs: Node) -> Node:
        return replace(self, members=tuple(inputs))

    def label(self) -> str:
        return f"{self.operation.title()}{'All' if self.all else ''}"

    @property
    def union_all(self) -> bool:
        """Whether it only puts the rows of its members together."""
        return self.operation == "UNION" and self.all

    @once
    def changelog(self) -> ChangelogKind:
        append = all(child.changelog is APPEND for child in self.members)
        final = self.operation == "UNION" or self.bounded
        return APPEND if append and final else CHANGELOG

    @once
    def key(self) -> Key | None:
        return None

    @once
    def state_bound(self) -> str | None:
        return None if self.union_all else rows_kept(self, self.ttl_us)

    @property
    def needs_watermark(self) -> bool:
        bounded = self.union_all or self.ttl_us is not None
        return not bounded and any(item.closes for item in self.fields)

    @property
    def reads_clock(self) -> bool:
        return self.ttl_us is not None

    def until_close(self, by_time: bool) -> Node:
        """Rows of all members wait for the smallest of their watermarks, where they tell a time."""
        if not self.union_all:
            return self
        members = [member.until_close(by_time) for member in self.members]
        held = [_hold_of(member) for member in members]
        end = _end_for_all(self.fields, held)
        if end is None:
            return self.with_inputs(*members)
        spec = end.window
        return Hold(self.fields, input=self, spec=spec, end_id=end.id, span=self.span)

    @property
    def stateless(self) -> bool:
        return self.union_all
