"""Where rows come from."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from tidegate.catalog.objects import LookupTable, SideStream, Source
from tidegate.plan.nodes.base import Key, Node
from tidegate.plan.nodes.once import once
from tidegate.plan.nodes.window import Hold
from tidegate.types import ChangelogKind


@dataclass(frozen=True, eq=False)
class Leaf(Node):
    """A node without inputs; it keeps nothing."""

    @once
    def state_bound(self) -> str | None:
        return None

    @property
    def stateless(self) -> bool:
        return True

    @property
    def kept_expressions(self) -> tuple[exp.Expr, ...] | None:
        return None


@dataclass(frozen=True, eq=False)
class Scan(Leaf):
    """Reads a source."""

    source: Source = field(kw_only=True)

    def label(self) -> str:
        return f"Source({self.source.name})"

    @once
    def bounded(self) -> bool:
        return self.source.bounded

    @once
    def has_watermark(self) -> bool:
        return self.source.watermark is not None

    @once
    def changelog(self) -> ChangelogKind:
        return self.source.changelog

    @once
    def key(self) -> Key | None:
        names = {name.lower() for name in self.source.primary_key}
        return tuple(item.id for item in self.fields if item.name.lower() in names) or None

    def until_close(self, by_time: bool) -> Node:
        if not by_time or self.source.watermark is None:
            return self
        name = self.source.watermark.column.lower()
        time = next(item for item in self.fields if item.name.lower() == name)
        return Hold(self.fields, input=self, spec=None, end_id=time.id, span=self.span)


@dataclass(frozen=True, eq=False)
class SideScan(Leaf):
    """Reads the dead letters or late rows that belong to another declaration."""

    side: SideStream = field(kw_only=True)

    def label(self) -> str:
        return f"Stream({self.side.name})"

    @once
    def bounded(self) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class LookupScan(Leaf):
    """A lookup table; only the right side of a lookup join can be one."""

    table: LookupTable = field(kw_only=True)

    def label(self) -> str:
        return f"LookupTable({self.table.name})"


@dataclass(frozen=True, eq=False)
class NoRows(Leaf):
    """Stands where something was refused, or is put in later. It never runs."""
