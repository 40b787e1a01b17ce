"""UNION, INTERSECT, EXCEPT."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tidegate.plan.nodes.base import APPEND, CHANGELOG, Key, Node, rows_kept
from tidegate.plan.nodes.fields import Role
from tidegate.plan.nodes.once import once
from tidegate.plan.nodes.window import Hold
from tidegate.types import ChangelogKind


def _is_held(node: Node) -> bool:
    """Whether its rows wait for nothing but the watermark."""
    while node.stateless and len(node.inputs) == 1:
        (node,) = node.inputs
    return isinstance(node, Hold)


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
        times = sorted(
            (item for item in self.fields if item.on_time),
            key=lambda item: item.role is not Role.WINDOW_END,
        )
        if not times or not all(_is_held(member) for member in members):
            return self.with_inputs(*members)
        end = times[0]
        spec = end.window if end.role is Role.WINDOW_END else None
        return Hold(self.fields, input=self, spec=spec, end_id=end.id, span=self.span)

    @property
    def stateless(self) -> bool:
        return self.union_all
