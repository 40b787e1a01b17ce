"""The DataFrame of a pipeline: all its streams, from sources to task reports."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from sqlglot import exp

from tidegate.catalog.objects import SideKind, Source
from tidegate.columns import CONTROL, EVENT_TIME, OP, ORIGIN, SELECTED
from tidegate.operators.vectorized import VectorStage
from tidegate.physical.planner import PhysicalPlan, ScanPlan, scans_and_operators
from tidegate.physical.stage_sql import carries_op, emits_upserts, may_split_updates
from tidegate.physical.vectorized import source_vectors
from tidegate.plan import nodes as n
from tidegate.spark.errors import JobFailed
from tidegate.spark.lowering import Lowered, LoweringContext, lower, read_ports
from tidegate.spark.sharing import (
    SharedOperators,
    SharedScan,
    StreamNames,
    merged,
    read_scans,
    shared_scans,
    without_reports,
)
from tidegate.spark.sources import dead_letters, scanned, source_frame
from tidegate.spark.tasks.late_rows import (
    FAILED_COLUMNS,
    FAILED_SCHEMA,
    IS_FAILED,
    IS_LATE,
    LateRowsFrame,
    late_scan,
    with_failed,
    with_late,
)
from tidegate.spark.tasks.protocol import EpochSpecStore, InputKey
from tidegate.spark.tasks.read import (
    DirectScan,
    Reader,
    ReadFrame,
    Reading,
    ReadStream,
    ranges_of,
)
from tidegate.spark.tasks.sink_write import REPORTS_SCHEMA, StagedSink, StagingSpec, staging
from tidegate.spark.tasks.step import step_and_stage
from tidegate.sql.quoting import quote_identifier

if TYPE_CHECKING:
    from tidegate.connectors.base import (
        InputRange,
        LookupConnector,
        ScanRequest,
        SinkConnector,
        SourceConnector,
        SplitReader,
    )

_HIDDEN = (ORIGIN, EVENT_TIME, SELECTED, CONTROL)


@dataclass(frozen=True)
class FramedSink:
    """An open sink and the rows of the stream that it takes."""

    name: str
    sink: SinkConnector
    takes: SideKind | None = None


@dataclass(frozen=True)
class FramedStream:
    """A stream with its sinks and readers, for building the frame."""

    plan: PhysicalPlan
    keys: Mapping[int, str]
    sinks: tuple[FramedSink, ...]
    late_names: tuple[str, ...] = ()
    # The streams that read its late rows.
    readers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.plan.stream

    @property
    def plain(self) -> bool:
        """True if all sinks take the rows of the stream unchanged."""
        computed = any(item.takes or item.sink.columns([]) is not None for item in self.sinks)
        return not (computed or self.readers)


@dataclass(frozen=True)
class FrameContext:
    """The state that all streams of a pipeline share."""

    spark: SparkSession
    sources: Mapping[str, SourceConnector]
    lookups: Mapping[str, LookupConnector]
    # Returns the source of a scan, and its read.
    source_of: Callable[[ScanPlan], tuple[Source, ScanRequest]]
    epoch_specs: EpochSpecStore
    key_groups: int
    tasks: int
    state: str
    # By stream and source: input ranges that Spark's own readers read.
    read_by_spark: Mapping[InputKey, InputRange] = field(default_factory=dict)
    now_us: int = 0
    # The operators whose input Spark pre-aggregates.
    grouped: frozenset[str] = frozenset()
    # True if tasks compute stages that do not need Spark SQL.
    vectors: bool = True
    shared: list[DataFrame] = field(default_factory=list)
    # The ranges that Spark's own readers read in this frame, by stream and source.
    used_spark_readers: set[InputKey] = field(default_factory=set)
    # Whether epochs are large.
    large: bool = False
    # Streams whose ranges of a source are the same.
    alike: Sequence[Sequence[InputKey]] = ()
    shared_scans: dict[InputKey, SharedScan] = field(default_factory=dict)
    # Rows that several scans share, by the first scan's stream and the source.
    decoded: dict[InputKey, DataFrame] = field(default_factory=dict)
    # By stream: late rows that other streams read.
    late: dict[str, LateRowsFrame] = field(default_factory=dict)
    # The shared operators, and their rows by number.
    shared_operators: SharedOperators = field(default_factory=dict)
    sent: dict[int, DataFrame] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)


@dataclass(frozen=True)
class PipelineFrame:
    """A frame whose rows are task reports, and the frames that are cached while it runs."""

    reports: DataFrame
    shared: Sequence[DataFrame]
    # True if the frame reads the input ranges of one epoch only.
    once: bool = False
    tasks: int = 1
    # True for large epochs, in which generated code is worth its compilation.
    large: bool = False


def pipeline_frame(context: FrameContext, streams: Sequence[FramedStream]) -> PipelineFrame:
    """Build one frame for all streams; running it processes an epoch, and its rows are reports."""
    scans = [
        (stream.name, scan, stream_names)
        for stream in streams
        for scan, stream_names in read_scans(
            stream.name, stream.plan.leaves, context.shared_operators, (stream.name,)
        )
    ]
    if context.large:
        shared = shared_scans(scans, context.alike, context.source_of, context.sources)
        context.shared_scans.update(shared)
    _plan_reading(context, streams)
    frames = [
        _stream_frame(context, stream)
        for stream in streams
        if stream.name.lower() not in context.reading.streams
    ]
    if not context.reading.operator_indexes and context.reading.streams:
        lowering = lowering_context(context, streams[0])
        frames.append(lowering.read_frame(context.reading.ranges, REPORTS_SCHEMA))
    reports = frames[0]
    for frame in frames[1:]:
        reports = reports.union(frame)
    once = bool(context.used_spark_readers)
    return PipelineFrame(reports, context.shared, once, context.tasks, context.large)


def _plan_reading(context: FrameContext, streams: Sequence[FramedStream]) -> None:
    """Find what tasks read themselves, for which operators and streams."""
    reading = context.reading
    readers: list[Reader] = []
    for stream in streams:
        operator_indexes: dict[Hashable, int] = {}
        for place, alike, ports in read_ports(stream.plan, lowering_context(context, stream)):
            if place in reading.operator_indexes:
                continue
            if alike is not None and alike in operator_indexes:
                reading.operator_indexes[place] = operator_indexes[alike]
                continue
            operator_index = reading.operator_indexes[place] = len(reading.operator_indexes)
            if alike is not None:
                operator_indexes[alike] = operator_index
            readers += [
                replace(port, pack=replace(port.pack, operator_index=operator_index))
                for port in ports
            ]
    by = min(reading.operator_indexes.values(), default=None)
    for stream in streams:
        read = _read_stream(context, stream)
        if read is not None:
            reading.streams.add(stream.name.lower())
            readers.append(replace(read, by=by))
    first_of = {place: group[0] for group in context.alike for place in group}
    reading.ranges = ranges_of(readers, first_of, lambda scans: _reader_of(context, scans))


def _read_stream(context: FrameContext, stream: FramedStream) -> ReadStream | None:
    """Return a stream whose rows the reading tasks can stage; None if they cannot."""
    stage = stream.plan.vectors
    if stage is None or not (context.vectors and stream.plain):
        return None
    (last,) = stream.plan.leaves
    scan = _direct(context, stream, last, (stream.name,)) if isinstance(last, ScanPlan) else None
    return None if scan is None else ReadStream(scan, stage, _staging(stream, stage, scans=True))


def _reader_of(context: FrameContext, scans: Sequence[DirectScan]) -> SplitReader | None:
    """Return the reader for the columns of all these scans."""
    opened = context.sources[scans[0].range_key[1]]
    return opened.create_reader(merged([scan.read for scan in scans]))


def run_job(spark: SparkSession, frame: PipelineFrame, description: str) -> list[bytes]:
    """Run a frame again and return its reports; its plan is already analyzed."""
    spark.sparkContext.setJobDescription(description)
    # Spark's own shuffles have as many partitions as there are tasks, not 200.
    spark.conf.set("spark.sql.shuffle.partitions", str(frame.tasks))
    spark.conf.set("spark.sql.codegen.wholeStage", str(frame.large).lower())
    try:
        for shared in frame.shared:
            shared.persist()
        reports: list[bytes] = frame.reports.select("*").toArrow().column("report").to_pylist()
    except (PySparkException, Py4JError) as error:
        # Spark reports a dead worker as a Java exception.
        raise JobFailed(error) from None
    finally:
        for shared in frame.shared:
            shared.unpersist()
    return reports


def lowering_context(context: FrameContext, stream: FramedStream) -> LoweringContext:
    """Return the context for lowering a stream of the pipeline."""
    return LoweringContext(
        context.spark,
        lambda scan, stream_names: _scan(context, stream, scan, stream_names),
        lambda scan, stream_names: _direct(context, stream, scan, stream_names),
        context.epoch_specs,
        context.key_groups,
        context.tasks,
        context.state,
        stream.keys,
        context.lookups,
        context.grouped,
        context.shared,
        context.vectors,
        context.shared_operators,
        context.sent,
        context.reading,
    )


def _stream_frame(context: FrameContext, stream: FramedStream) -> DataFrame:
    plan = stream.plan
    lowering = lowering_context(context, stream)
    lowered = lower(plan, lowering, may_fuse=stream.plain)
    if lowered.frame is None:
        return _fused(lowered, stream, lowering)
    frame = _with_deletes(plan, lowered.frame)
    main = [sink for sink in stream.sinks if sink.takes is None]
    names = [name for name in frame.columns if name not in _HIDDEN]
    frame, staged = _with_columns(frame, main, names, _arrow(frame, names), SELECTED)
    frame, staged = _with_plain_names(frame, staged)
    late = [sink for sink in stream.sinks if sink.takes is SideKind.LATE_ROWS]
    if late or stream.readers:
        assert plan.late_schema is not None, "the plan has a late stream"
        rows = with_late(
            frame, plan.late_schema, stream.late_names, stream.readers, context.epoch_specs
        )
        if stream.readers:
            # Its operators run once for all readers.
            context.shared.append(rows.frame)
            context.late[stream.name.lower()] = rows
        frame, others = _with_columns(rows.frame, late, rows.columns, rows.schema, IS_LATE)
        staged += others
    failed = [sink for sink in stream.sinks if sink.takes is SideKind.FAILED_ROWS]
    if failed:
        frame = with_failed(frame)
        frame, others = _with_columns(frame, failed, FAILED_COLUMNS, FAILED_SCHEMA, IS_FAILED)
        staged += others
    scans = any(isinstance(leaf, ScanPlan) for leaf in scans_and_operators(plan.leaves))
    spec = StagingSpec(stream.name, tuple(staged), scans)
    return frame.mapInArrow(staging(spec, context.epoch_specs), REPORTS_SCHEMA)


def _fused(lowered: Lowered, stream: FramedStream, lowering: LoweringContext) -> DataFrame:
    """Lower a stream whose last stage is computed by the tasks of its sinks."""
    below, stage = lowered.below, lowered.stage
    assert below is not None and stage is not None, "a stream has a frame or a stage"
    spec = _staging(stream, stage, scans=False)
    work = step_and_stage(below.spec, stage, spec, lowering.epoch_specs)
    return below.packed.mapInArrow(work, REPORTS_SCHEMA)


def _staging(stream: FramedStream, stage: VectorStage, scans: bool) -> StagingSpec:
    """Return the staging spec of a stream whose last stage tasks compute."""
    schema = pa.schema([pa.field(name, kind) for name, _, kind in stage.columns])
    names = tuple(schema.names)
    staged = (
        StagedSink(item.name, item.sink.writer_factory(schema), names, names)
        for item in stream.sinks
    )
    return StagingSpec(stream.name, tuple(staged), scans)


def _with_columns(
    frame: DataFrame,
    sinks: Sequence[FramedSink],
    frame_columns: Sequence[str],
    schema: pa.Schema,
    live: str,
) -> tuple[DataFrame, list[StagedSink]]:
    """Add the columns that sinks need, and assign columns to sinks.

    `frame_columns` are the columns of the frame, in the order of the schema.
    """
    available = [
        (quote_identifier(column), name)
        for column, name in zip(frame_columns, schema.names, strict=True)
    ]
    staged: list[StagedSink] = []
    extra: list[str] = []
    for item in sinks:
        sink_columns = item.sink.columns(available)
        taken = list(frame_columns)
        if sink_columns is not None:
            taken = [f"_tg_out_{len(extra) + index}" for index, _ in enumerate(sink_columns)]
            pairs = zip(sink_columns, taken, strict=True)
            extra += [f"CASE WHEN {live} THEN {sql} END AS {name}" for (sql, _), name in pairs]
        names = tuple(name for _, name in (sink_columns or available))
        factory = item.sink.writer_factory(schema)
        chosen = live if item.takes else None
        staged.append(StagedSink(item.name, factory, tuple(taken), names, chosen))
    return (frame.selectExpr("*", *extra) if extra else frame), staged


def _with_plain_names(
    frame: DataFrame, staged: Sequence[StagedSink]
) -> tuple[DataFrame, list[StagedSink]]:
    """Rename columns before they go to Python, because Spark parses their names."""
    plain = {name: f"_tg_c{index}" for index, name in enumerate(frame.columns)}
    plain |= {name: name for name in _HIDDEN}
    renamed = frame.toDF(*[plain[name] for name in frame.columns])
    return renamed, [replace(s, columns=tuple(plain[name] for name in s.columns)) for s in staged]


def _arrow(frame: DataFrame, names: Sequence[str]) -> pa.Schema:
    fields = [field for field in frame.schema.fields if field.name in names]
    return to_arrow_schema(StructType(fields), timezone="UTC")


def _scan(
    context: FrameContext, stream: FramedStream, scan: ScanPlan, stream_names: StreamNames
) -> DataFrame:
    if scan.late_rows_of is not None:
        return late_scan(scan, context.late[scan.late_rows_of])
    source, read = context.source_of(scan)
    shared = context.shared_scans.get((stream.name.lower(), source.name.lower()))
    if shared is None:
        unshared = SharedScan(stream.name, read, stream_names)
        frame = source_frame(source, _raw(context, unshared, scan, source))
    else:
        frame = _decoded_once(context, shared, scan, source)
    if isinstance(scan.node, n.SideScan):
        return dead_letters(scan, source, frame)
    return scanned(scan, source, frame)


def _raw(context: FrameContext, one: SharedScan, scan: ScanPlan, source: Source) -> DataFrame:
    """Return the records of a source, read by one scan or by several equal ones."""
    opened = context.sources[source.name.lower()]
    range_key = (one.leader.lower(), source.name.lower())
    input_range = context.read_by_spark.get(range_key)
    if input_range is not None:
        context.used_spark_readers.add(range_key)
        raw = opened.spark_read_frame(context.spark, one.read, input_range)
        return raw.selectExpr("*", f"{context.now_us}L AS _tg_now")
    leaf = ReadFrame(
        context.spark,
        "/".join(range_key),
        one.streams,
        context.epoch_specs,
        context.tasks,
        scan.index if scan.partitioned else None,
    )
    return opened.frame(context.spark, one.read, leaf)


def _decoded_once(
    context: FrameContext, shared: SharedScan, scan: ScanPlan, source: Source
) -> DataFrame:
    """Return the rows that several scans read; they are cached while the job runs."""
    range_key = (shared.leader.lower(), source.name.lower())
    decoded = context.decoded.get(range_key)
    if decoded is not None:
        return without_reports(decoded)
    frame = source_frame(source, _raw(context, shared, scan, source))
    context.shared.append(frame)
    context.decoded[range_key] = frame
    return frame


def _direct(
    context: FrameContext, stream: FramedStream, scan: ScanPlan, stream_names: StreamNames
) -> DirectScan | None:
    """Return how tasks read a source directly; None if Spark has to read it."""
    if scan.late_rows_of is not None:
        return None
    source, read = context.source_of(scan)
    if (stream.name.lower(), source.name.lower()) in context.shared_scans:
        return None
    opened = context.sources[source.name.lower()]
    input_range = context.read_by_spark.get((stream.name.lower(), source.name.lower()))
    reader = opened.create_reader(read)
    vectors = source_vectors(scan.node, source)
    if reader is None or vectors is None or (input_range is not None and not input_range.splits):
        return None
    return DirectScan(
        read,
        reader,
        (stream.name.lower(), source.name.lower()),
        stream_names,
        scan.index,
        vectors.columns,
        vectors.required,
        vectors.time,
        vectors.max_future_us,
        scan.partitioned,
    )


def _with_deletes(plan: PhysicalPlan, frame: DataFrame) -> DataFrame:
    """Turn an old row whose new row was filtered out into a delete."""
    node = plan.node
    filters = plan.filters_failed_rows or may_split_updates(node)
    if not (emits_upserts(node) and carries_op(node) and filters):
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
