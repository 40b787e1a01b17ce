"""Columns of a source that tasks compute as Arrow expressions instead of SQL."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from tidegate.catalog.objects import Source
from tidegate.operators.vectorized import Cast, Vector, VectorColumn
from tidegate.physical.planner import ScanPlan
from tidegate.physical.typed import arrow_type
from tidegate.physical.vectorized import TypedVector, Untranslatable, translated, typed_vector
from tidegate.plan import nodes as n


@dataclass(frozen=True)
class SourceVectors:
    """The columns of a scan as expressions over a reader's columns, and the conditions for
    validity.
    """

    columns: tuple[tuple[str, Vector], ...]
    required: tuple[Vector, ...]
    time: Vector | None
    max_future_us: int | None


def source_vectors(scan: ScanPlan, source: Source) -> SourceVectors | None:
    """Translate the columns of a scan to Arrow expressions; None if Spark's SQL is needed."""
    if not isinstance(scan.node, n.Scan) or source.options["changelog"]:
        return None
    try:
        source_columns = _Columns(source)
        columns = tuple((item.id, source_columns.of(item.name).vector) for item in scan.node.fields)
        required = tuple(source_columns.of(c.name).vector for c in source.columns if c.not_null)
        time = None
        if source.watermark is not None:
            time = source_columns.of(source.watermark.column)
            if time.kind != "TIMESTAMP":
                return None
        micros = Cast(time.vector, arrow_type("BIGINT")) if time is not None else None
        return SourceVectors(columns, required, micros, source.options["max_future"])
    except Untranslatable:
        return None


class _Columns:
    """Stored and computed columns of a source by case-insensitive name."""

    def __init__(self, source: Source) -> None:
        self.columns = {column.name.lower(): column for column in source.columns}

    def of(self, name: str) -> TypedVector:
        column = self.columns[name.lower()]
        if column.computed is None:
            return typed_vector(VectorColumn(column.name), str(column.type))
        tree = column.computed.copy()
        inner = {part.name.lower(): self.of(part.name) for part in tree.find_all(exp.Column)}
        lowered = tree.transform(_lowered)
        return translated(lowered, inner)


def _lowered(part: exp.Expr) -> exp.Expr:
    return exp.column(part.name.lower()) if isinstance(part, exp.Column) else part
