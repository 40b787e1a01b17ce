"""A physical plan as one streaming frame: stages in Spark SQL, operators between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    DateType,
    NumericType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, LATE, LIVE, MARK, ORIGIN
from tidegate.operators.epoch import Runner
from tidegate.physical.plan import FedPort, OperatorPlan, PhysicalPlan, ScanPlan
from tidegate.physical.stage_sql import quoted
from tidegate.spark.pack import (
    OUT_SCHEMA,
    PACKED_SCHEMA,
    PackSpec,
    UnpackSpec,
    packer,
    unpacker,
)
from tidegate.spark.processor import Processor

# Rows with no more columns than this, all of fixed size, are short.
MOST_NARROW = 64


@dataclass(frozen=True)
class LoweringContext:
    """What lowering needs from the pipeline."""

    spark: SparkSession
    scan: Callable[[ScanPlan], DataFrame]
    control: Path
    key_groups: int
    reports: Any


@dataclass(frozen=True)
class Lowered:
    """The frame of a stream; `narrow`: all rows that are packed are short, so that nobody must
    measure them."""

    frame: DataFrame
    narrow: bool


def lower(plan: PhysicalPlan, context: LoweringContext) -> Lowered:
    """Build the frame; the views that hold it together are dropped when it is done."""
    lowering = _Lowering(plan, context)
    try:
        lowering.leaves(plan.leaves)
        return Lowered(context.spark.sql(plan.sql), lowering.narrow)
    finally:
        for view in lowering.views:
            context.spark.catalog.dropTempView(view)


class _Lowering:
    """Makes a view of each leaf of a stage, bottom up."""

    def __init__(self, plan: PhysicalPlan, context: LoweringContext) -> None:
        self.plan = plan
        self.context = context
        self.views: list[str] = []
        self.narrow = True

    def leaves(self, leaves: tuple[ScanPlan | OperatorPlan, ...]) -> None:
        for leaf in leaves:
            frame = self._scan(leaf) if isinstance(leaf, ScanPlan) else self._operator(leaf)
            frame.createOrReplaceTempView(leaf.view)
            self.views.append(leaf.view)

    def _scan(self, scan: ScanPlan) -> DataFrame:
        """The columns of a source by id; with its time, and its end when that has come."""
        frame = self.context.scan(scan)
        columns = scan.columns
        if scan.arrival:
            known = ARRIVAL_FILE in frame.columns
            columns.append(ARRIVAL_FILE if known else f"'' AS {ARRIVAL_FILE}")
            columns.append(f"{ARRIVAL_ROW if known else '0L'} AS {ARRIVAL_ROW}")
        if not scan.ticked:
            return frame.selectExpr(*columns)
        origin = f"{scan.index} AS {ORIGIN}"
        late = [f"CAST(NULL AS BINARY) AS {LATE}"] if self.plan.carries_late else []
        rows = frame.selectExpr(
            *columns, origin, f"{scan.mark} AS {MARK}", *late, f"true AS {LIVE}"
        )
        nothing = [
            f"CAST(NULL AS {field.dataType.simpleString()}) AS {quoted(field.name)}"
            for field in rows.schema.fields[: len(columns)]
        ]
        ends = self._control().selectExpr(
            *nothing, origin, f"mark AS {MARK}", *late, f"false AS {LIVE}"
        )
        return rows.union(ends)

    def _control(self) -> DataFrame:
        """The durable stream that says when the input has ended, and that time goes on."""
        control = self.context.control
        control.mkdir(parents=True, exist_ok=True)
        return self.context.spark.readStream.schema("mark BIGINT").json(str(control))

    def _operator(self, plan: OperatorPlan) -> DataFrame:
        packed: DataFrame | None = None
        for number, port in enumerate(plan.ports):
            frame = self._port(plan, number, port)
            packed = frame if packed is None else packed.union(frame)
        assert packed is not None, "an operator has inputs"
        processor = Processor(runner_of(plan), self.plan.stream, self.context.reports)
        out = packed.groupBy("kg").transformWithState(processor, OUT_SCHEMA, "Append", "None")
        origin = plan.number if plan.ticked else None
        late = self.plan.carries_late and plan.ticked
        spec = UnpackSpec(plan.operator.output, plan.columns, origin, late)
        frame = out.mapInArrow(unpacker(spec), from_arrow_schema(spec.output))
        if plan.arrival:
            frame = frame.selectExpr("*", f"'' AS {ARRIVAL_FILE}", f"0L AS {ARRIVAL_ROW}")
        return frame

    def _port(self, plan: OperatorPlan, number: int, fed: FedPort) -> DataFrame:
        """The packed rows of one port."""
        self.leaves(fed.leaves)
        port = fed.port
        spec = PackSpec(
            plan.operator,
            number,
            port.columns,
            fed.delays,
            self.context.key_groups,
            port.grid,
            port.hashed,
        )
        rows = self.context.spark.sql(fed.sql)
        self.narrow = self.narrow and _is_narrow(rows.schema)
        return rows.mapInArrow(packer(spec), PACKED_SCHEMA)


def runner_of(plan: OperatorPlan) -> Runner:
    """What steps an operator in its key groups."""
    origins = tuple(port.origins for port in plan.ports)
    return Runner(
        plan.number, plan.operator, origins, plan.by_clock, plan.held_back_us, plan.meaning
    )


def _is_narrow(schema: StructType) -> bool:
    """Whether a row has a few columns of fixed size."""
    fixed = (NumericType, BooleanType, DateType, TimestampType, TimestampNTZType)
    return len(schema) <= MOST_NARROW and all(isinstance(f.dataType, fixed) for f in schema)
