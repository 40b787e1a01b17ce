"""What feeds an operator: the columns of its ports, and the SQL that makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidegate.columns import BAD_MARK, LIVE, MARK
from tidegate.physical.ticked_sql import when_live
from tidegate.plan import nodes as n
from tidegate.sql.quoting import quoted

if TYPE_CHECKING:
    from tidegate.operators.aggregate.groups import Grid


@dataclass(frozen=True, eq=False)
class PortPlan:
    """The rows of one port: the node they come from, the SQL of each column of the stage, and
    which of them an operator knows under which name."""

    node: n.Node
    stage: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    grid: Grid | None = None
    # The column whose value is the pane, before the grid; often the event time itself.
    time_id: str | None = None
    # What the hash is made of, behind `lift`.
    hashed: tuple[str, ...] = ()
    # Whether rows say where they stood, because their order counts.
    arrival: bool = False
    # What Spark can add up of the rows of a group, as (name, SQL over the columns of the stage).
    partials: tuple[tuple[str, str], ...] | None = None

    def with_pane(self, column: str) -> PortPlan:
        """The same, with the pane read from a column that is there already."""
        from tidegate.operators.aggregate.groups import PANE

        given = dict(self.columns)[PANE]
        columns = tuple((own, column if own == PANE else name) for own, name in self.columns)
        used = {name for _, name in columns}
        stage = tuple((name, sql) for name, sql in self.stage if name != given or name in used)
        return replace(self, columns=columns, stage=stage)

    def grouped(self, below: str, hidden: Sequence[str]) -> str | None:
        """The SQL of groups instead of rows, over the SQL of rows; None if it cannot be."""
        from tidegate.operators.aggregate.groups import PANE, ROWS

        if self.partials is None:
            return None
        given = dict(self.columns)
        keys = [(name, column) for name, column in self.columns if name[0] == "k"]
        by = [(name, f"CASE WHEN {LIVE} THEN {column} END") for name, column in keys]
        if PANE in given:
            by.append((PANE, f"CASE WHEN {LIVE} THEN {self._pane(given[PANE])} END"))
        passed = [name for name in hidden if name != MARK]
        columns = [*passed, f"max({MARK}) AS {MARK}", *(f"{sql} AS {name}" for name, sql in by)]
        columns += [f"count(1) AS {ROWS}", *(f"{sql} AS {name}" for name, sql in self.partials)]
        # Records of no use are counted apart from rows that were filtered out.
        groups = [*passed, f"{MARK} <=> {BAD_MARK + 1}L - 1L", *(sql for _, sql in by)]
        return f"SELECT {', '.join(columns)} FROM ({below}) GROUP BY {', '.join(groups)}"

    def _pane(self, column: str) -> str:
        if self.grid is None:
            return column
        offset, width = self.grid.offset_us, self.grid.width_us
        return f"{column} - pmod({column} - {offset}L, {width}L)"

    def select(self) -> list[str]:
        """The SELECT list of its stage: computed for rows, NULL for ticks."""
        trivial = {quoted(item.id) for item in self.node.fields}
        return [
            f"{sql if sql in trivial else when_live(sql)} AS {name}" for name, sql in self.stage
        ]


class Columns:
    """Collects the columns of a port; the same SQL is sent once."""

    def __init__(self) -> None:
        self.by_sql: dict[str, str] = {}
        self.named: list[tuple[str, str]] = []

    def add(self, name: str, sql: str) -> None:
        given = self.by_sql.setdefault(sql, f"x{len(self.by_sql)}")
        self.named.append((name, given))

    def add_all(self, letter: str, texts: Sequence[str]) -> None:
        """Columns that are numbered: k0, k1, …"""
        for index, sql in enumerate(texts):
            self.add(f"{letter}{index}", sql)

    def sql_of(self, given: str) -> str:
        return next(sql for sql, name in self.by_sql.items() if name == given)

    def port(self, node: n.Node, **rest: Any) -> PortPlan:
        stage = tuple((given, sql) for sql, given in self.by_sql.items())
        return PortPlan(node, stage, tuple(self.named), **rest)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, by which rows are hashed where they are few, behind `lift`."""
        return tuple(name for name, _ in self.named if name[0] == "k")


def column_sql(node: n.Node) -> list[str]:
    """The columns of a node, quoted."""
    return [quoted(item.id) for item in node.fields]
