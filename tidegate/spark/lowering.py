"""A plan as one streaming frame: stages in Spark SQL, operators between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
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

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Source
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, LATE, LIVE, MARK, OP, ORIGIN
from tidegate.operators.clock import Origin
from tidegate.operators.contract import Operator as RunningOperator
from tidegate.operators.epoch import Runner
from tidegate.operators.limits import Limits
from tidegate.physical.planner import Operator, Stage
from tidegate.physical.stage_sql import SqlWriter, carries_op, output_sql, quoted
from tidegate.physical.ticked_sql import TickedWriter
from tidegate.plan import nodes as n
from tidegate.spark.operators import OperatorBuilder
from tidegate.spark.pack import (
    NOW,
    OUT_SCHEMA,
    PACKED_SCHEMA,
    PackSpec,
    UnpackSpec,
    packer,
    unpacker,
)
from tidegate.spark.ports import PortInput, stage_columns
from tidegate.spark.processor import Processor

# Operators are numbered from here on, sources from 0.
FIRST_OPERATOR = 1_000
# Rows with no more columns than this, all of fixed size, are short.
MOST_NARROW = 64
_NOW_SQL = "unix_micros(current_timestamp())"


@dataclass(frozen=True)
class LoweringContext:
    """What lowering needs from the pipeline."""

    spark: SparkSession
    catalog: Catalog
    stream: str
    scan: Callable[[n.Scan | n.SideScan, int, bool], DataFrame]
    control: Path
    key_groups: int
    limits: Limits
    reports: Any
    late_of: n.Node | None = None
    needs_clock: bool = False


@dataclass
class Lowered:
    """The frame of a stream; `late` is the schema of the blobs in the column LATE."""

    frame: DataFrame
    late: pa.Schema | None
    operators: dict[int, str] = field(default_factory=dict)
    fingerprints: dict[int, str] = field(default_factory=dict)
    # Whether all rows that are packed are short, so that nobody must measure them.
    narrow: bool = True


class Lowering:
    """Lowers one plan; views are dropped when it is done."""

    def __init__(self, context: LoweringContext) -> None:
        self.context = context
        self.builder = OperatorBuilder(context.spark, context.catalog, context.limits)
        self.scans: list[n.Scan | n.SideScan] = []
        self.operators: dict[int, str] = {}
        self.fingerprints: dict[int, str] = {}
        self.views: list[str] = []
        self.late: pa.Schema | None = None
        self.narrow = True

    def lower(self, stage: Stage) -> Lowered:
        try:
            return self._lower(stage)
        finally:
            for view in self.views:
                self.context.spark.catalog.dropTempView(view)

    def _lower(self, stage: Stage) -> Lowered:
        spark = self.context.spark
        if self.context.late_of is not None:
            views = self._leaves(stage, ticked=True)[0]
            writer: SqlWriter = TickedWriter(views.get, with_late=True)
            sql = output_sql(stage.node, views.get, writer, (LIVE, LATE))
        else:
            views = self._leaves(stage, ticked=False)[0]
            writer = SqlWriter(views.get, by_id=True)
            sql = output_sql(stage.node, views.get, writer)
        frame = spark.sql(sql)
        return Lowered(frame, self.late, self.operators, self.fingerprints, self.narrow)

    # Leaves

    def _leaves(
        self, stage: Stage, ticked: bool, arrival: bool = False
    ) -> tuple[dict[n.Node, str], list[Origin]]:
        """A view for each leaf of a stage, and where its time comes from."""
        views: dict[n.Node, str] = {}
        origins: list[Origin] = []
        for scan in stage.scans:
            index = len(self.scans)
            self.scans.append(scan)
            frame = self.context.scan(scan, index, arrival)
            views[scan] = self._view(self._scanned(scan, frame, index, ticked, arrival))
            origin = self._origin(scan, index)
            origins += [origin] if origin is not None else []
        if stage.scans and not origins:
            # Without event time the sources still tell when they have ended.
            first = len(self.scans) - len(stage.scans)
            origins = [Origin(first + place) for place, _ in enumerate(stage.scans)]
        for operator in stage.operators:
            frame, number = self._operator(operator, ticked)
            if arrival:
                frame = frame.selectExpr("*", f"'' AS {ARRIVAL_FILE}", f"0L AS {ARRIVAL_ROW}")
            views[operator.node] = self._view(frame)
            origins.append(Origin(number))
        return views, origins

    def _origin(self, scan: n.Scan | n.SideScan, index: int) -> Origin | None:
        source = getattr(scan, "source", None)
        if not isinstance(source, Source) or source.watermark is None:
            return None
        return Origin(index, source.options["idle_timeout"])

    def _scanned(
        self,
        scan: n.Scan | n.SideScan,
        frame: DataFrame,
        index: int,
        ticked: bool,
        arrival: bool,
    ) -> DataFrame:
        """The columns of a source by id; with its time, and its end when that has come."""
        columns = [f"{quoted(item.name)} AS {quoted(item.id)}" for item in scan.fields]
        columns += [OP] if carries_op(scan) else []
        if arrival:
            known = ARRIVAL_FILE in frame.columns
            columns.append(ARRIVAL_FILE if known else f"'' AS {ARRIVAL_FILE}")
            number = ARRIVAL_ROW if known else "0L"
            columns.append(f"{number} AS {ARRIVAL_ROW}")
        if not ticked:
            return frame.selectExpr(*columns)
        source = getattr(scan, "source", None)
        watermark = source.watermark if isinstance(source, Source) else None
        mark = (
            f"unix_micros(CAST({quoted(watermark.column)} AS TIMESTAMP))"
            if watermark is not None
            else "CAST(NULL AS BIGINT)"
        )
        hidden = [f"{index} AS {ORIGIN}", f"{mark} AS {MARK}"]
        late = [f"CAST(NULL AS BINARY) AS {LATE}"] if self._carries_late else []
        rows = frame.selectExpr(*columns, *hidden, *late, f"true AS {LIVE}")
        nothing = [
            f"CAST(NULL AS {f.dataType.simpleString()}) AS {quoted(f.name)}"
            for f in rows.schema.fields[: len(columns)]
        ]
        ends = self._control().selectExpr(
            *nothing, f"{index} AS {ORIGIN}", f"mark AS {MARK}", *late, f"false AS {LIVE}"
        )
        return rows.union(ends)

    @property
    def _carries_late(self) -> bool:
        return self.context.late_of is not None

    def _control(self) -> DataFrame:
        """The durable stream that says when the input has ended, and that time goes on."""
        control = self.context.control
        control.mkdir(parents=True, exist_ok=True)
        spark = self.context.spark
        return spark.readStream.schema("mark BIGINT").json(str(control))

    def _view(self, frame: DataFrame) -> str:
        name = f"_tidegate_{self.context.stream}_{len(self.views)}".lower()
        frame.createOrReplaceTempView(name)
        self.views.append(name)
        return name

    # Operators

    def _operator(self, operator: Operator, ticked: bool) -> tuple[DataFrame, int]:
        number = FIRST_OPERATOR + len(self.operators)
        self.operators[number] = operator.name
        keeps_late = operator.node is self.context.late_of
        built = self.builder.build(operator.node, keeps_late)
        running = built.operator
        if keeps_late:
            self.late = running.late
        packed: DataFrame | None = None
        ports: list[tuple[Origin, ...]] = []
        for port, (given, stage) in enumerate(zip(built.ports, operator.inputs, strict=True)):
            frame, origins = self._port(running, port, given, stage)
            ports.append(tuple(origins))
            packed = frame if packed is None else packed.union(frame)
        assert packed is not None, "an operator has inputs"
        runner = Runner(number, running, tuple(ports), built.processing_time, built.held_back_us)
        self.fingerprints[number] = runner.fingerprint.hex()
        processor = Processor(runner, self.context.stream, self.context.reports)
        out = packed.groupBy("kg").transformWithState(processor, OUT_SCHEMA, "Append", "None")
        return self._unpacked(operator.node, running, out, number if ticked else None), number

    def _port(
        self, running: RunningOperator, port: int, given: PortInput, stage: Stage
    ) -> tuple[DataFrame, Sequence[Origin]]:
        """The packed rows of one port."""
        views, origins = self._leaves(stage, ticked=True, arrival=given.arrival)
        writer = TickedWriter(views.get, self._carries_late, given.arrival)
        if self._is_mark(stage, given.time_id):
            given = given.with_pane(MARK)
        hidden = [MARK, LIVE, *([LATE] if self._carries_late else [])]
        hidden += [ORIGIN] if len(origins) > 1 else []
        if self.context.needs_clock:
            hidden.append(f"{_NOW_SQL} AS {NOW}")
        below = writer.child(given.node)
        sql = f"SELECT {', '.join([*hidden, *stage_columns(given)])} FROM {below}"
        delays = tuple((origin.id, self._delay(origin.id)) for origin in origins)
        spec = PackSpec(
            running, port, given.columns, delays, self.context.key_groups, given.grid, given.hashed
        )
        rows = self.context.spark.sql(sql)
        self.narrow = self.narrow and _is_narrow(rows.schema)
        return rows.mapInArrow(packer(spec), PACKED_SCHEMA), origins

    def _is_mark(self, stage: Stage, time_id: str | None) -> bool:
        """Whether a column is the event time of the one source, which comes along anyway."""
        scan = stage.scans[0] if len(stage.scans) == 1 and not stage.operators else None
        if time_id is None or not isinstance(scan, n.Scan) or scan.source.watermark is None:
            return False
        name = scan.source.watermark.column.lower()
        return any(item.id == time_id and item.name.lower() == name for item in scan.fields)

    def _delay(self, origin: int) -> int:
        if origin >= FIRST_OPERATOR:
            return 0
        source = getattr(self.scans[origin], "source", None)
        watermark = source.watermark if isinstance(source, Source) else None
        return watermark.delay_us if watermark is not None else 0

    def _unpacked(
        self, node: n.Node, running: RunningOperator, out: DataFrame, origin: int | None
    ) -> DataFrame:
        names = [item.id for item in node.fields]
        names += [OP] if OP in running.output.names else []
        late = self._carries_late and origin is not None
        spec = UnpackSpec(running.output, tuple(names), origin, late)
        return out.mapInArrow(unpacker(spec), from_arrow_schema(spec.output))


def _is_narrow(schema: StructType) -> bool:
    """Whether a row has a few columns of fixed size."""
    fixed = (NumericType, BooleanType, DateType, TimestampType, TimestampNTZType)
    return len(schema) <= MOST_NARROW and all(isinstance(f.dataType, fixed) for f in schema)
