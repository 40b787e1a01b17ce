"""Builds the DataFrames of stages in Spark SQL: their sources, lookups, exposed rows and sinks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType
from sqlglot import exp

from tidegate.catalog.objects import Source
from tidegate.columns import (
    ARRIVAL,
    ARRIVAL_FILE,
    ARRIVAL_ROW,
    CONTROL,
    EVENT_TIME,
    NOW,
    OP,
    ORIGIN,
    SELECTED,
)
from tidegate.physical.graph_builder import FAILED_SCHEMA, merged_request
from tidegate.physical.job_graph import (
    DecodedRows,
    ExposedRows,
    InputKey,
    JobGraph,
    SinkTarget,
    SinkWrite,
    SqlScan,
    SqlSinks,
    SqlStage,
    StreamNames,
)
from tidegate.physical.lookup import MATCHES
from tidegate.physical.planner import (
    LeafPlan,
    LookupPlan,
    OperatorPlan,
    ScanPlan,
    scans_and_operators,
)
from tidegate.physical.stages import node_calls_udf, stage_calls_udf
from tidegate.physical.typed import arrow_type
from tidegate.plan import nodes as n
from tidegate.spark.sources import dead_letters, decoded, scanned, source_frame
from tidegate.spark.tasks.protocol import WATERMARKS, EpochSpecStore
from tidegate.spark.tasks.task_functions import (
    IS_FAILED,
    LookupTaskSpec,
    SplitRead,
    TaskFunction,
    count_function,
    failed_rows_function,
    lookup_function,
    split_function,
)
from tidegate.sql.expressions import calls_for_selected_rows
from tidegate.sql.quoting import quote_identifier

if TYPE_CHECKING:
    from tidegate.connectors.base import (
        LookupConnector,
        SinkConnector,
        SourceConnector,
        SplitReader,
    )

_HIDDEN = (ORIGIN, EVENT_TIME, SELECTED, CONTROL, NOW, *ARRIVAL)
_FAILED_COLUMNS = [f"_tg_failed_{name}" for name in FAILED_SCHEMA.names]


def map_in_arrow(frame: DataFrame, function: TaskFunction, schema: pa.Schema | str) -> DataFrame:
    """Run a function in the tasks of a frame."""
    kind = schema if isinstance(schema, str) else from_arrow_schema(schema)
    return frame.mapInArrow(function, kind)


@dataclass(frozen=True)
class Connectors:
    """Return the open connectors of a pipeline by name."""

    source: Callable[[str], SourceConnector]
    lookup: Callable[[str], LookupConnector]
    sink: Callable[[str], SinkConnector]


@dataclass
class SqlFrames:
    """Builds the frames of the stages of one graph."""

    spark: SparkSession
    epoch_specs: EpochSpecStore
    connectors: Connectors
    graph: JobGraph
    # Returns the frame with the unpacked rows of an operator or of late rows.
    exposed: Callable[[SqlStage, ExposedRows], DataFrame]
    now_us: int = 0
    # Frames with several readers, which are cached while the job runs.
    cached: list[DataFrame] = field(default_factory=list)
    # The decoded records of ranges that several stages read.
    decoded: dict[InputKey, DataFrame] = field(default_factory=dict)

    def rows(self, stage: SqlStage) -> DataFrame:
        """Return the rows of a stage."""
        if not stage.leaves:
            (exposed,) = stage.inputs.values()
            return self.exposed(stage, exposed)
        lowering = _StageFrames(self, stage)
        try:
            return lowering.stage(stage.sql, stage.leaves, stage.calls_udf)
        finally:
            for view in lowering.views:
                self.spark.catalog.dropTempView(view)

    def read(self, stage: SqlStage, scan: ScanPlan) -> DataFrame:
        """Return the rows of a source with hidden columns."""
        sql_scan = stage.scans[scan.index]
        source = sql_scan.source
        frame = self._source_frame(stage, sql_scan, scan.index if scan.partitioned else None)
        if isinstance(scan.node, n.SideScan):
            return dead_letters(scan, source, frame)
        return scanned(scan, source, frame)

    def decoded_records(self, stage: SqlStage, rows: DecodedRows) -> DataFrame:
        """Return the records of the source of a stage, for branches that tasks compute."""
        (scan,) = stage.leaves
        (sql_scan,) = stage.scans.values()
        source = sql_scan.source
        frame = self._source_frame(stage, sql_scan, 0 if rows.partitioned else None)
        return decoded(scan, source, frame, rows)

    def _source_frame(self, stage: SqlStage, scan: SqlScan, partitioned: int | None) -> DataFrame:
        """Return the decoded records of a source with its computed columns."""
        sharing = self._scans_of(scan.range_key, partitioned) if self.graph.large else []
        if len(sharing) > 1:
            return self._decoded_once(scan.range_key, sharing, scan.source, partitioned)
        return source_frame(scan.source, self._records(scan, stage.streams, partitioned))

    def _scans_of(
        self, key: InputKey, partitioned: int | None
    ) -> list[tuple[SqlScan, StreamNames]]:
        """Return all scans of a range that can share its decoded records, with their streams.

        The partitions of a source with partition watermarks are reported to one origin.
        """
        scans = [
            (stage.scans[leaf.index], _origin_of(stage, leaf), stage.streams)
            for stage in self.graph.sql
            for leaf in scans_and_operators(stage.leaves)
            if isinstance(leaf, ScanPlan) and leaf.index in stage.scans
        ]
        same_range = [item for item in scans if item[0].range_key == key]
        origins = {origin for _, origin, _ in same_range if origin is not None}
        if len(origins) > 1:
            return []
        return [(scan, names) for scan, origin, names in same_range if origin == partitioned]

    def _decoded_once(
        self,
        key: InputKey,
        scans: Sequence[tuple[SqlScan, StreamNames]],
        source: Source,
        partitioned: int | None,
    ) -> DataFrame:
        """Return the records that several scans read; they are cached while the job runs.

        The first scan passes on the control messages.
        """
        decoded = self.decoded.get(key)
        if decoded is not None:
            return _without_reports(decoded)
        first = scans[0][0]
        merged = replace(first, request=merged_request([scan.request for scan, _ in scans]))
        streams = tuple(stream for _, names in scans for stream in names)
        frame = source_frame(source, self._records(merged, streams, partitioned))
        self.cached.append(frame)
        self.decoded[key] = frame
        return frame

    def _records(self, scan: SqlScan, streams: StreamNames, partitioned: int | None) -> DataFrame:
        """Return the records of a source, decoded by Spark."""
        connector = self.connectors.source(scan.source.name.lower())
        if scan.input_range is not None:
            frame = connector.spark_read_frame(self.spark, scan.request, scan.input_range)
            return frame.selectExpr("*", f"{self.now_us}L AS {NOW}")
        builder = _SplitFrames(self, "/".join(scan.range_key), streams, partitioned)
        return connector.frame(self.spark, scan.request, builder)

    # Sinks

    def staged(self, stage: SqlStage, end: SqlSinks) -> tuple[DataFrame, SinkWrite]:
        """Return the frame whose rows the tasks of sinks stage."""
        frame = self.rows(stage)
        if stage.leaves:
            frame = self._with_deletes(stage, frame)
        names = [name for name in frame.columns if name not in _HIDDEN]
        rows = self._sinks(end.rows)
        frame, staged = _with_sink_columns(frame, rows, names, _schema(frame, names), SELECTED)
        frame, staged = _with_plain_names(frame, staged)
        if end.dead_letters:
            frame = _with_failed_rows(frame)
            letters = self._sinks(end.dead_letters)
            frame, others = _with_sink_columns(
                frame, letters, _FAILED_COLUMNS, FAILED_SCHEMA, IS_FAILED, IS_FAILED
            )
            staged += others
        return frame, SinkWrite(end.stream, tuple(staged), end.reads_source, end.counts)

    def _sinks(self, names: Sequence[str]) -> list[tuple[str, SinkConnector]]:
        return [(name, self.connectors.sink(name)) for name in names]

    def _with_deletes(self, stage: SqlStage, frame: DataFrame) -> DataFrame:
        """Turn an old row whose new row was filtered out into a delete."""
        node = stage.deletes
        if node is None:
            return frame
        key = node.key or ()
        names = [quote_identifier(node.field(column).name) for column in key] or ["1"]
        has_new = f"max({SELECTED} AND {OP} IN ('+I', '+U')) OVER (PARTITION BY {', '.join(names)})"
        columns = [quote_identifier(name) for name in frame.columns if name != OP]
        marked = frame.selectExpr(*columns, OP, f"{has_new} AS _tg_new")
        net_changes = marked.where(f"NOT {SELECTED} OR NOT ({OP} IN ('-U', '-D') AND _tg_new)")
        return net_changes.selectExpr(
            *columns, f"CASE WHEN {OP} = '-U' THEN '-D' ELSE {OP} END AS {OP}"
        )


def _origin_of(stage: SqlStage, scan: ScanPlan) -> int | None:
    """Return the origin that the partitions of a source are reported to, if they are."""
    if not scan.partitioned:
        return None
    return 0 if isinstance(stage.end, DecodedRows) else scan.index


@dataclass(frozen=True)
class _SplitFrames:
    """Turns split readers into frames, for connectors (a `FrameBuilder`)."""

    frames: SqlFrames
    split: str
    streams: StreamNames
    origin: int | None

    def read_frame(self, reader: SplitReader) -> DataFrame:
        """Return the rows that tasks read, and a report with their number."""
        read = SplitRead(self.split, self.streams, reader, self.origin)
        tasks = self.frames.graph.tasks
        numbers = self.frames.spark.range(0, tasks, 1, tasks)
        return map_in_arrow(numbers, split_function(read, self.frames.epoch_specs), read.schema)

    def count_rows(self, frame: DataFrame) -> DataFrame:
        """Add a report with the number of rows to a frame that Spark reads."""
        frame_schema = to_arrow_schema(frame.schema, timezone="UTC")
        # In a report all other columns are NULL, even those that were declared NOT NULL.
        schema = pa.schema([field.with_nullable(True) for field in frame_schema])
        # Spark parses the names of columns that go to Python, and names may contain any character.
        plain = frame.toDF(*[f"c{index}" for index, _ in enumerate(schema)])
        return map_in_arrow(plain, count_function(self.streams, schema), schema)


class _StageFrames:
    """Creates a view of each leaf of a stage, bottom up."""

    def __init__(self, frames: SqlFrames, stage: SqlStage) -> None:
        self.frames = frames
        self.target = stage
        self.views: list[str] = []

    def stage(self, sql: str, leaves: Sequence[LeafPlan], calls_udf: bool) -> DataFrame:
        """Return the rows of a stage; `calls_udf` is true if it calls Python functions.

        Spark calls Python functions for every row, even inside CASE. So rows that are not selected
        bypass the stage; leaves with state are cached, because they are read twice.
        """
        frames = [self._leaf(leaf) for leaf in leaves]
        spark = self.frames.spark
        if not calls_udf:
            self._create_views(leaves, frames)
            return spark.sql(sql)
        for leaf, frame in zip(leaves, frames, strict=True):
            if isinstance(leaf, OperatorPlan | LookupPlan):
                self.frames.cached.append(frame)
        self._create_views(leaves, [frame.where(SELECTED) for frame in frames])
        rows = spark.sql(calls_for_selected_rows(sql, SELECTED))
        for frame in frames:
            hidden = {name for name in frame.columns if name in _HIDDEN}
            columns = [_bypassing(item, hidden) for item in rows.schema.fields]
            rows = rows.union(frame.where(f"NOT {SELECTED}").selectExpr(*columns))
        return rows

    def _create_views(self, leaves: Sequence[LeafPlan], frames: Sequence[DataFrame]) -> None:
        for leaf, frame in zip(leaves, frames, strict=True):
            frame.createOrReplaceTempView(leaf.view)
            self.views.append(leaf.view)

    def _leaf(self, leaf: LeafPlan) -> DataFrame:
        if isinstance(leaf, LookupPlan):
            return self._enriched(leaf)
        if isinstance(leaf, OperatorPlan):
            return self.frames.exposed(self.target, self.target.inputs[leaf.number])
        if leaf.late_rows_of is not None:
            exposed = self.target.inputs[leaf.late_rows_of]
            return _late_rows(leaf, exposed, self.frames.exposed(self.target, exposed))
        return self.frames.read(self.target, leaf)

    def _enriched(self, plan: LookupPlan) -> DataFrame:
        """Join the matching rows of a lookup table to the input."""
        calls_udf = stage_calls_udf(plan.node.left, {leaf.node for leaf in plan.leaves})
        calls_udf = calls_udf or node_calls_udf(plan.node)
        input_rows = self.stage(plan.input_sql, plan.leaves, calls_udf)
        name = plan.table.name.lower()
        lookup = plan.lookup
        reader = self.frames.connectors.lookup(name).reader_factory(lookup.columns, lookup.keys)
        input_schema = to_arrow_schema(input_rows.schema, timezone="UTC")
        fields = [
            input_schema.field(n).with_nullable(True)
            for n in input_schema.names
            if n not in plan.keys
        ]
        table_fields = [
            pa.field(f"f{index}", arrow_type(kind))
            for index, (_, kind) in enumerate(lookup.columns)
        ]
        fields.append(pa.field(MATCHES, pa.list_(pa.field("element", pa.struct(table_fields)))))
        spec = LookupTaskSpec(name, reader, plan.keys, pa.schema(fields))
        enriched = map_in_arrow(
            input_rows, lookup_function(spec, self.frames.epoch_specs), spec.output
        )
        enriched.createOrReplaceTempView(plan.enriched_view)
        self.views.append(plan.enriched_view)
        return self.frames.spark.sql(plan.output_sql)


def _late_rows(scan: ScanPlan, exposed: ExposedRows, frame: DataFrame) -> DataFrame:
    """Return the late rows of another stream, with columns by id and hidden ones.

    They have no event time, because they are behind the watermark of their stream.
    """
    names = {name.lower(): name for name in exposed.schema.names}
    columns = [
        f"{quote_identifier(names[item.name.lower()])} AS {quote_identifier(item.id)}"
        for item in scan.node.fields
    ]
    hidden = [f"{scan.index} AS {ORIGIN}", f"CAST(NULL AS BIGINT) AS {EVENT_TIME}"]
    hidden += [SELECTED, CONTROL]
    if scan.arrival:
        hidden += [f"'' AS {ARRIVAL_FILE}", f"0L AS {ARRIVAL_ROW}"]
    if scan.has_processing_time:
        hidden.append(NOW)
    return frame.selectExpr(*columns, *hidden)


def _without_reports(frame: DataFrame) -> DataFrame:
    """Return the same rows for another scan, without the reports that the first one passes on."""
    if CONTROL not in frame.columns:
        return frame
    return frame.where(f"{CONTROL} IS NULL OR substring({CONTROL}, 1, 1) = X'{WATERMARKS.hex()}'")


def _with_sink_columns(
    frame: DataFrame,
    sinks: Sequence[tuple[str, SinkConnector]],
    frame_columns: Sequence[str],
    schema: pa.Schema,
    condition: str,
    selector: str | None = None,
) -> tuple[DataFrame, list[SinkTarget]]:
    """Add the columns that sinks need, and assign columns to sinks.

    `frame_columns` are the columns of the frame, in the order of the schema.
    """
    available = [
        (quote_identifier(column), name)
        for column, name in zip(frame_columns, schema.names, strict=True)
    ]
    targets: list[SinkTarget] = []
    extra: list[str] = []
    for name, connector in sinks:
        sink_columns = connector.columns(available)
        columns = list(frame_columns)
        if sink_columns is not None:
            columns = [f"_tg_out_{len(extra) + index}" for index, _ in enumerate(sink_columns)]
            pairs = zip(sink_columns, columns, strict=True)
            extra += [
                f"CASE WHEN {condition} THEN {sql} END AS {column}" for (sql, _), column in pairs
            ]
        names = tuple(column for _, column in (sink_columns or available))
        factory = connector.writer_factory(schema)
        targets.append(SinkTarget(name, factory, tuple(columns), names, selector))
    return (frame.selectExpr("*", *extra) if extra else frame), targets


def _with_plain_names(
    frame: DataFrame, targets: Sequence[SinkTarget]
) -> tuple[DataFrame, list[SinkTarget]]:
    """Rename columns before they go to Python, because Spark parses their names."""
    plain = {name: f"_tg_c{index}" for index, name in enumerate(frame.columns)}
    plain |= {name: name for name in _HIDDEN}
    renamed = frame.toDF(*[plain[name] for name in frame.columns])
    return renamed, [replace(t, columns=tuple(plain[name] for name in t.columns)) for t in targets]


def _with_failed_rows(frame: DataFrame) -> DataFrame:
    """Add dead letters as rows that are not selected."""
    letters = [pa.field(name, pa.string()) for name in _FAILED_COLUMNS]
    # In a dead letter the columns of the stream are NULL, even if they are NOT NULL there.
    fields = [f.with_nullable(True) for f in to_arrow_schema(frame.schema, timezone="UTC")]
    schema = pa.schema([*fields, *letters, pa.field(IS_FAILED, pa.bool_())])
    return map_in_arrow(frame, failed_rows_function(schema, _FAILED_COLUMNS), schema)


def _schema(frame: DataFrame, names: Sequence[str]) -> pa.Schema:
    fields = [field for field in frame.schema.fields if field.name in names]
    return to_arrow_schema(StructType(fields), timezone="UTC")


def _bypassing(item: StructField, hidden: set[str]) -> str:
    """Return a column of rows that bypass a stage; only hidden columns keep their values."""
    value = item.name if item.name in hidden else "NULL"
    return f"CAST({value} AS {item.dataType.simpleString()}) AS {quote_identifier(item.name)}"


def stored_columns(source: Source, names: set[str]) -> tuple[tuple[str, str], ...]:
    """Return the stored columns that are needed to compute and check these columns."""
    required = {name.lower() for name in names}
    required |= {c.name.lower() for c in source.columns if c.not_null}
    if source.watermark is not None:
        required.add(source.watermark.column.lower())
    for column in source.columns:
        if column.computed is not None:
            required |= {part.name.lower() for part in column.computed.find_all(exp.Column)}
    columns = [(c.name, str(c.type)) for c in source.stored_columns if c.name.lower() in required]
    columns += [(OP, "STRING")] if source.options["changelog"] else []
    # Rows are needed even if no column is read.
    return tuple(columns or [(c.name, str(c.type)) for c in source.stored_columns[:1]])
