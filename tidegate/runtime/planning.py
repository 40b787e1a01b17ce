"""From declared streams to the members of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import (
    DEFAULT_PIPELINE,
    Declared,
    LookupTable,
    ScriptOrigin,
    SideKind,
    SideStream,
    Sink,
    Source,
    Stream,
)
from tidegate.catalog.settings import Settings
from tidegate.checkpoint.manifest import SourceState
from tidegate.connectors.base import LookupConnector
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import CatalogError, DataDirectoryError, Location, TidegateError
from tidegate.operators.operator import Limits
from tidegate.physical.planner import EnrichPlan, ScanPlan, plan_physical
from tidegate.physical.typed import TypedPlan
from tidegate.plan.bind.tables import plan_side_stream
from tidegate.plan.side_streams import late_inputs
from tidegate.runtime.reconciliation import PipelineStream
from tidegate.storage import Store, uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pipeline_of(declared: Declared | None) -> str:
    """The pipeline that a stream runs in."""
    return declared.pipeline if isinstance(declared, Stream) else DEFAULT_PIPELINE


@dataclass(frozen=True)
class Planning:
    """Plans streams with the catalog and the settings of now."""

    spark: SparkSession
    catalog: Catalog
    settings: Settings

    def member(
        self, declared: Stream | SideStream, sinks: Sequence[Sink], is_read: bool = False
    ) -> PipelineStream:
        """A stream with the sinks that take its rows, and those that take its late ones.

        `is_read`: another stream reads its late rows.
        """
        late = self._side(declared, SideKind.LATE_ROWS)
        typed = self._typed(declared)
        limits = Limits(self.settings["max_groups"], self.settings["max_state_bytes"])
        takers = {sink.source.lower() for sink in sinks}
        keeps_late = is_read or (late is not None and late.name.lower() in takers)
        guarded = isinstance(declared, Stream) and declared.on_error == "dead_letter"
        plan = plan_physical(declared.name, typed, limits, keeps_late, guarded)
        scans = (scan for scan in plan.scans if scan.late_of is None)
        sources = dict(self._source_state(scan) for scan in scans)
        return PipelineStream(
            declared.name,
            typed,
            plan,
            sources,
            tuple(sinks),
            late,
            self._on_change(declared),
            late_inputs=late_inputs(typed.plan),
            declared=declared,
            failed=self._side(declared, SideKind.FAILED_ROWS),
        )

    def _side(self, stream: Declared, holds: SideKind) -> SideStream | None:
        """The stream of the late rows or of the dead letters of a stream."""
        sides = (side for side in self.catalog.of(SideStream) if side.holds is holds)
        return next((side for side in sides if side.parent.lower() == stream.name.lower()), None)

    def _on_change(self, declared: Stream | SideStream) -> str:
        given = declared.options["on_change"] if isinstance(declared, Stream) else None
        return str(given or self.settings["on_change"])

    def _typed(self, declared: Stream | SideStream) -> TypedPlan:
        if isinstance(declared, Stream):
            typed: TypedPlan = declared.typed
            return typed
        from tidegate.spark.analysis import analyse_plan

        return analyse_plan(self.spark, declared, plan_side_stream(declared), self.catalog)

    def source_of(self, scan: ScanPlan) -> Source:
        """The source that a scan reads; dead letters come from the source itself."""
        node = scan.node
        source = getattr(node, "source", None)
        if source is None:
            source = self.catalog.get(node.side.parent)  # type: ignore[union-attr]
        assert isinstance(source, Source), "what is scanned is a source"
        return source

    def origin_of(self, stream: str) -> ScriptOrigin | None:
        """The text that a stream was declared in."""
        declared = self.catalog.get(stream)
        return declared.origin if declared is not None else None

    def _source_state(self, scan: ScanPlan) -> tuple[str, SourceState]:
        source = self.source_of(scan)
        spec = CONNECTORS[source.connector].source
        names = spec.identity if spec is not None else ()
        options = {name: str(source.options[name]) for name in names}
        return source.name.lower(), SourceState(source.connector, options)

    def trigger_us(self, stream: str) -> int:
        declared = self.catalog.get(stream)
        given = declared.options["trigger_interval"] if isinstance(declared, Stream) else None
        return int(given if given is not None else self.settings["trigger_interval"])


# ---- The lookup tables of a pipeline.


@dataclass
class Lookups:
    """Opens what streams ask, and closes what nobody asks any more."""

    store: Store
    open_lookup: Callable[[LookupTable, str], LookupConnector]
    opened: dict[str, LookupConnector] = field(default_factory=dict)
    # The declarations that these were opened by: one of the same name may be another table.
    _declared: dict[str, LookupTable] = field(default_factory=dict)

    def open(self, plans: Sequence[EnrichPlan]) -> None:
        found: dict[str, LookupConnector] = {}
        for table in (plan.table for plan in plans):
            name = table.name.lower()
            if name not in self.opened or self._declared.get(name) != table:
                scratch = self.store.child("lookups").child(name).uri
                self.opened[name] = self.open_lookup(table, scratch)
                self._declared[name] = table
            found[name] = self.opened[name]
        self.opened = found

    def as_of(self, spark: SparkSession) -> dict[str, Any]:
        """What the tasks of an epoch must know to see all tables as they are now."""
        return {name: lookup.as_of(spark) for name, lookup in self.opened.items()}


# ---- Where the machines of a cluster find files: a path of one machine's disk is not such a place.

_HINT = (
    "use a URI that all machines reach, such as s3://bucket/folder; or, if this path leads to the "
    "same files on all of them (NFS, say), SET shared_disk = true;"
)


def is_cluster(master: str | None) -> bool:
    """Whether tasks run on other machines than the driver."""
    return master is not None and not master.startswith("local")


def unshared_directory(data: str) -> TidegateError | None:
    """A data directory that tasks on other machines could not read or write."""
    if not data.startswith("file:"):
        return None
    return DataDirectoryError(
        "TG-601",
        f"the data directory {data} is on the disk of one machine, and tasks of a cluster run on "
        "others",
        hint=_HINT,
    )


def unshared_paths(declared: Iterable[Declared]) -> list[TidegateError]:
    """Sources and sinks with a path that tasks on other machines could not read or write."""
    return [_misplaced(item) for item in declared if _is_local(item)]


def _is_local(item: Declared) -> bool:
    path = item.options.get("path")
    return isinstance(path, str) and uri(path).startswith("file:")


def _misplaced(item: Declared) -> TidegateError:
    given = next(option for option in item.statement.options if option.name.lower() == "path")
    span = given.value_span
    return CatalogError(
        "TG-207",
        f"the path of {item.name} is on the disk of one machine, and tasks of a cluster run on "
        "others",
        location=Location(item.origin.text, span.start, span.end, item.origin.file),
        hint=_HINT,
    )
