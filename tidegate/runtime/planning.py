"""The streams of a pipeline, planned from their declarations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.connector import ColumnTypes
from tidegate.catalog.declare import FAILED_ROW_COLUMNS, LATE_COLUMNS
from tidegate.catalog.objects import (
    DEFAULT_PIPELINE,
    Declared,
    ScriptText,
    SideKind,
    SideStream,
    Sink,
    Source,
    Stream,
)
from tidegate.catalog.settings import Settings
from tidegate.checkpoint.manifest import OperatorState, SourceIdentity
from tidegate.columns import OP
from tidegate.connectors import view
from tidegate.connectors.base import StreamSchema
from tidegate.connectors.registry import CONNECTORS
from tidegate.operators.operator import Limits
from tidegate.physical.planner import PhysicalPlan, ScanPlan, plan_physical, runner_of
from tidegate.physical.stage_sql import carries_op
from tidegate.physical.typed import TypedPlan
from tidegate.plan.bind.tables import plan_side_stream
from tidegate.plan.side_streams import late_inputs, late_stream
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pipeline_of(declared: Declared | None) -> str:
    """Return the name of the pipeline that a stream runs in."""
    return declared.pipeline if isinstance(declared, Stream) else DEFAULT_PIPELINE


@dataclass(frozen=True)
class PipelineStream:
    """A stream that runs in a pipeline: its plans, sources and sinks."""

    name: str
    typed: TypedPlan
    plan: PhysicalPlan
    sources: Mapping[str, SourceIdentity]
    sinks: tuple[Sink, ...]
    # The side stream with its late rows, if it is declared.
    late_rows: SideStream | None = None
    on_change: str = "reject"
    # The streams of late rows that it reads, by name, and the streams whose late rows they are.
    late_inputs: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    # The object in the catalog. A replaced stream has the same name, but another object.
    declaration: object = field(default=None, kw_only=True, compare=False, repr=False)
    # The side stream with its dead letters, if it is declared.
    dead_letters: SideStream | None = field(default=None, kw_only=True)

    def has_same_declaration(self, other: PipelineStream) -> bool:
        return self.key == other.key and self.declaration is other.declaration

    @property
    def key(self) -> str:
        return self.name.lower()

    def operators(self) -> dict[int, tuple[str, OperatorState]]:
        """Return the operators by number: their keys in manifests, and their initial states."""
        operators: dict[int, tuple[str, OperatorState]] = {}
        keys: set[str] = set()
        for plan in self.plan.operators:
            fingerprint = runner_of(plan).fingerprint.hex()
            key = base = f"{self.key}.{fingerprint}"
            while key in keys:
                key = f"{base}.{len(keys)}"
            keys.add(key)
            operators[plan.number] = (key, OperatorState(self.key, plan.name, fingerprint))
        return operators

    @property
    def source_scans(self) -> list[ScanPlan]:
        """The scans that read sources, without those that read late rows of other streams."""
        return [scan for scan in self.plan.scans if scan.late_rows_of is None]

    def side_stream(self, sink: Sink) -> SideStream | None:
        """Return the side stream that a sink consumes; None if it consumes the stream itself."""
        if sink.stream.lower() == self.key:
            return None
        sides = (side for side in (self.late_rows, self.dead_letters) if side is not None)
        return next(side for side in sides if side.name.lower() == sink.stream.lower())

    def side_kind(self, sink: Sink) -> SideKind | None:
        """Return the kind of the side stream that a sink consumes."""
        side = self.side_stream(sink)
        return side.side_kind if side is not None else None

    def sink_schema(self, sink: Sink) -> StreamSchema:
        """Describe the rows that a sink receives."""
        side = self.side_stream(sink)
        if side is not None:
            return StreamSchema(tuple((c.name, str(c.type)) for c in side.columns))
        node = self.plan.node
        columns = tuple((item.name, str(item.type)) for item in node.fields)
        nullable = frozenset(item.name for item in node.fields if item.nullable)
        if node.changelog is ChangelogKind.APPEND:
            return StreamSchema(columns, has_op=carries_op(node), nullable=nullable)
        key = None if node.key is None else tuple(node.field(item).name for item in node.key)
        return StreamSchema(columns, node.changelog, key, carries_op(node), nullable)

    def sink_columns(self, sink: Sink) -> ColumnTypes:
        """Return the columns that a sink receives, with Spark's names of the types."""
        plan = self.typed.plan
        kind = self.side_kind(sink)
        if kind is SideKind.FAILED_ROWS:
            return tuple((item.name, str(item.type)) for item in FAILED_ROW_COLUMNS)
        if kind is SideKind.LATE_ROWS:
            late = [(item.name, str(item.type)) for item in late_stream(plan).columns]
            return (*late, *((item.name, str(item.type)) for item in LATE_COLUMNS))
        columns = tuple((item.name, str(item.type)) for item in plan.fields)
        return (*columns, (OP, "STRING")) if carries_op(plan) else columns

    @property
    def view_definition(self) -> str | None:
        """The canonical form of its query if it is a materialized view."""
        views = (sink for sink in self.sinks if sink.connector == view.CONNECTOR)
        return next((str(sink.options["definition"]) for sink in views), None)


def with_dependencies(
    stream: PipelineStream, streams: Sequence[PipelineStream]
) -> list[PipelineStream]:
    """Return a stream after all streams whose late rows it reads, directly or indirectly."""
    required = {stream.key}
    dependencies = []
    for other in reversed(streams):
        if other.key in required:
            required |= set(other.late_inputs.values())
            dependencies.append(other)
    return dependencies[::-1]


# ---- Planning


@dataclass(frozen=True)
class StreamPlanner:
    """Plans streams with the current catalog and settings."""

    spark: SparkSession
    catalog: Catalog
    settings: Settings

    def plan_stream(
        self,
        declared: Stream | SideStream,
        sinks: Sequence[Sink],
        late_rows_are_read: bool = False,
    ) -> PipelineStream:
        """Plan a stream with the sinks that consume it or its side streams.

        `late_rows_are_read`: another stream reads its late rows.
        """
        late_rows = self._side_stream(declared, SideKind.LATE_ROWS)
        typed = self._typed(declared)
        limits = Limits(self.settings["max_groups"], self.settings["max_state_bytes"])
        consumed = {sink.stream.lower() for sink in sinks}
        keeps_late = late_rows_are_read or (
            late_rows is not None and late_rows.name.lower() in consumed
        )
        filters_failed_rows = isinstance(declared, Stream) and declared.on_error == "dead_letter"
        plan = plan_physical(declared.name, typed, limits, keeps_late, filters_failed_rows)
        scans = (scan for scan in plan.scans if scan.late_rows_of is None)
        sources = dict(self._source_identity(scan) for scan in scans)
        return PipelineStream(
            declared.name,
            typed,
            plan,
            sources,
            tuple(sinks),
            late_rows,
            self._on_change(declared),
            late_inputs=late_inputs(typed.plan),
            declaration=declared,
            dead_letters=self._side_stream(declared, SideKind.FAILED_ROWS),
        )

    def _side_stream(self, stream: Declared, kind: SideKind) -> SideStream | None:
        sides = (side for side in self.catalog.of_type(SideStream) if side.side_kind is kind)
        return next((side for side in sides if side.parent.lower() == stream.name.lower()), None)

    def _on_change(self, declared: Stream | SideStream) -> str:
        option = declared.options["on_change"] if isinstance(declared, Stream) else None
        return str(option or self.settings["on_change"])

    def _typed(self, declared: Stream | SideStream) -> TypedPlan:
        if isinstance(declared, Stream):
            typed: TypedPlan = declared.typed_plan
            return typed
        from tidegate.spark.analysis import analyse_plan

        return analyse_plan(self.spark, declared, plan_side_stream(declared), self.catalog)

    def source_of(self, scan: ScanPlan) -> Source:
        """Return the source that a scan reads. Dead letters of a source are read from it, too."""
        node = scan.node
        source = getattr(node, "source", None)
        if source is None:
            source = self.catalog.get(node.side.parent)  # type: ignore[union-attr]
        assert isinstance(source, Source), "a scan reads a source"
        return source

    def script_of(self, stream: str) -> ScriptText | None:
        """Return the script in which a stream is declared."""
        declared = self.catalog.get(stream)
        return declared.script if declared is not None else None

    def _source_identity(self, scan: ScanPlan) -> tuple[str, SourceIdentity]:
        source = self.source_of(scan)
        spec = CONNECTORS[source.connector].source
        names = spec.identity_options if spec is not None else ()
        options = {name: str(source.options[name]) for name in names}
        return source.name.lower(), SourceIdentity(source.connector, options)

    def trigger_us(self, stream: str) -> int:
        """Return the trigger interval of a stream, or that of the settings."""
        declared = self.catalog.get(stream)
        option = declared.options["trigger_interval"] if isinstance(declared, Stream) else None
        return int(option if option is not None else self.settings["trigger_interval"])
