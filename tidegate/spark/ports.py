"""What feeds an operator: the columns of its ports, and the SQL that makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType

from tidegate.catalog.catalog import Catalog
from tidegate.operators.contract import Operator
from tidegate.operators.group_kernels import HASH, PANE
from tidegate.operators.hashing import has_fixed_width
from tidegate.operators.panes import Grid
from tidegate.physical.stage_sql import quoted
from tidegate.physical.ticked_sql import when_live
from tidegate.plan import nodes as n
from tidegate.spark.analysis import node_schema


@dataclass(frozen=True)
class PortInput:
    """The rows of one port: the node they come from, the SQL of each column of the stage, and
    which of them an operator knows under which name."""

    node: n.Node
    stage: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    grid: Grid | None = None
    # The column whose value is the pane, before the grid; often the event time itself.
    time_id: str | None = None
    # What the hash is made of behind `lift`; None if Spark makes it.
    hashed: tuple[str, ...] | None = None
    # Whether rows say where they stood, because their order counts.
    arrival: bool = False

    def with_pane(self, column: str) -> PortInput:
        """The same, with the pane read from a column that is there already."""
        given = dict(self.columns)[PANE]
        columns = tuple((own, column if own == PANE else name) for own, name in self.columns)
        used = {name for _, name in columns}
        stage = tuple((name, sql) for name, sql in self.stage if name != given or name in used)
        return replace(self, columns=columns, stage=stage)


@dataclass(frozen=True)
class Built:
    """An operator with what feeds it."""

    operator: Operator
    ports: tuple[PortInput, ...]
    processing_time: bool = False
    held_back_us: int = 0


class Columns:
    """The columns of a stage; the same SQL is sent once."""

    def __init__(self) -> None:
        self.by_sql: dict[str, str] = {}
        self.named: list[tuple[str, str]] = []

    def add(self, name: str, sql: str) -> None:
        given = self.by_sql.setdefault(sql, f"x{len(self.by_sql)}")
        self.named.append((name, given))

    def port(self, node: n.Node, **rest: Any) -> PortInput:
        stage = tuple((given, sql) for sql, given in self.by_sql.items())
        return PortInput(node, stage, tuple(self.named), **rest)


def stage_columns(port: PortInput) -> list[str]:
    """The SELECT list of a stage for a port: computed for rows, NULL for ticks."""
    trivial = {quoted(item.id) for item in port.node.fields}
    return [f"{sql if sql in trivial else when_live(sql)} AS {name}" for name, sql in port.stage]


def hash_columns(
    columns: Columns, keys: Sequence[str], types: Sequence[pa.DataType]
) -> tuple[str, ...] | None:
    """Numbers are hashed where they are few, behind `lift`; text by Spark."""
    if all(has_fixed_width(kind) for kind in types):
        return tuple(f"k{index}" for index, _ in enumerate(keys))
    columns.add(HASH, f"xxhash64({', '.join(keys)})")
    return None


@dataclass(frozen=True)
class Types:
    """Spark says which types columns and expressions have."""

    spark: SparkSession
    catalog: Catalog

    def spark_of(self, node: n.Node, expressions: Sequence[str]) -> list[DataType]:
        """The types of expressions over the columns of a node."""
        if not expressions:
            return []
        schema = node_schema(self.spark, self.catalog, node, expressions)
        return [field.dataType for field in schema.fields]

    def of(self, node: n.Node, expressions: Sequence[str]) -> list[pa.DataType]:
        return [self.arrow(kind) for kind in self.spark_of(node, expressions)]

    def columns(self, node: n.Node) -> list[pa.DataType]:
        """The types of the columns of a node, without _op."""
        schema = node_schema(self.spark, self.catalog, node)
        return [self.arrow(field.dataType) for field in schema.fields][: len(node.fields)]

    def widest(self, one: DataType, other: DataType) -> DataType:
        """The type in which Spark compares two others."""
        nothing = (f"CAST(NULL AS {kind.simpleString()})" for kind in (one, other))
        schema = self.spark.sql(f"SELECT coalesce({', '.join(nothing)}) AS c").schema
        return schema.fields[0].dataType

    def arrow(self, kind: DataType) -> pa.DataType:
        return to_arrow_type(kind, timezone="UTC")
