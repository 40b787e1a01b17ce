"""From declared streams to the members of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import (
    DEFAULT_PIPELINE,
    Declared,
    Origin,
    SideKind,
    SideStream,
    Sink,
    Source,
    Stream,
)
from tidegate.catalog.settings import Settings
from tidegate.checkpoint.manifest import SourceState
from tidegate.connectors.registry import CONNECTORS
from tidegate.operators.operator import Limits
from tidegate.physical.planner import ScanPlan, plan_physical
from tidegate.physical.typed import TypedPlan
from tidegate.plan.bind.tables import side_plan
from tidegate.plan.side_streams import late_inputs
from tidegate.runtime.members import Member

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
    ) -> Member:
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
        return Member(
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

        return analyse_plan(self.spark, declared, side_plan(declared), self.catalog)

    def source_of(self, scan: ScanPlan) -> Source:
        """The source that a scan reads; dead letters come from the source itself."""
        node = scan.node
        source = getattr(node, "source", None)
        if source is None:
            source = self.catalog.get(node.side.parent)  # type: ignore[union-attr]
        assert isinstance(source, Source), "what is scanned is a source"
        return source

    def origin_of(self, stream: str) -> Origin | None:
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
