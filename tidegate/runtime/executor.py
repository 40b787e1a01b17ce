"""The executor runs the job graph of an epoch; the local one does so in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.errors import RunError
from tidegate.physical.job_graph import JobGraph, Level
from tidegate.physical.planner import LeafPlan, PhysicalPlan
from tidegate.spark.errors import JobFailed
from tidegate.spark.tasks.levels import LevelTask, reports_of
from tidegate.spark.tasks.protocol import EpochSpec

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.connectors.base import LookupConnector
    from tidegate.spark.diagnostics import FailingRow

# Builds the graph of SQL over the leaves of a stage.
BuildQuery = Callable[[str, tuple[LeafPlan, ...]], JobGraph]


class Executor(Protocol):
    """Runs jobs. All methods are called by the thread of a pipeline, `cancel` by others."""

    @property
    def tasks(self) -> int:
        """The number of tasks that run at the same time."""

    def attach(self) -> None:
        """Prepare the current thread for jobs that `cancel` can stop."""

    def cancel(self) -> None:
        """Stop the running job."""

    def run(self, graph: JobGraph, epoch_spec: EpochSpec) -> list[bytes]:
        """Run the job of an epoch and return the reports of its tasks.

        Raises JobFailed. May be called again with the same arguments.
        """

    def forget(self) -> None:
        """Drop what is cached for graphs, because the streams have changed."""

    def lookup_versions(self, lookups: Mapping[str, LookupConnector]) -> dict[str, Any]:
        """Return the current version of each lookup table."""

    def failing_row(
        self, plan: PhysicalPlan, failed: JobFailed, epoch_spec: EpochSpec, build: BuildQuery
    ) -> FailingRow | None:
        """Find the expression that failed, and a row on which it does."""


@dataclass
class LocalExecutor:
    """Runs graphs in this process, without Spark. It rejects stages in Spark SQL.

    Tasks run one after the other, and rows are shuffled in memory.
    """

    tasks: int = 2

    def attach(self) -> None:
        """Do nothing."""

    def cancel(self) -> None:
        """Do nothing: a job is not interrupted."""

    def forget(self) -> None:
        """Do nothing."""

    def run(self, graph: JobGraph, epoch_spec: EpochSpec) -> list[bytes]:
        if graph.sql:
            names = ", ".join(dict.fromkeys(stage.stream for stage in graph.sql))
            raise RunError(
                "TG-501",
                f"the streams {names} need Spark SQL, which the local executor does not have",
                hint="run them in a session with Spark.",
            )
        first, *others = graph.levels
        level = LevelTask(first, epoch_spec, graph.tasks)
        rows = [batch for task in range(graph.tasks) for batch in level.read([task])]
        for other in others:
            reading = LevelTask(Level(other.reads), epoch_spec, graph.tasks)
            rows += [batch for task in range(graph.tasks) for batch in reading.read([task])]
            partitions = _shuffle(rows, graph.tasks)
            rows = [
                batch
                for partition in partitions
                for batch in LevelTask(other, epoch_spec, graph.tasks).run(partition)
            ]
        return [report for column in reports_of(iter(rows)) for report in column.to_pylist()]

    def lookup_versions(self, lookups: Mapping[str, LookupConnector]) -> dict[str, Any]:
        if lookups:
            raise RunError(
                "TG-501",
                f"the local executor cannot read the lookup tables {', '.join(lookups)}",
                hint="run the streams in a session with Spark.",
            )
        return {}

    def failing_row(
        self, plan: PhysicalPlan, failed: JobFailed, epoch_spec: EpochSpec, build: BuildQuery
    ) -> FailingRow | None:
        return None


def _shuffle(rows: list[pa.RecordBatch], tasks: int) -> list[list[pa.RecordBatch]]:
    """Partition rows by key group."""
    import pyarrow as pa

    partitions: list[list[pa.RecordBatch]] = [[] for _ in range(tasks)]
    for batch in rows:
        owners = batch.column("key_group").to_numpy() % tasks
        for task in range(tasks):
            part = batch.filter(pa.array(owners == task))
            if part.num_rows:
                partitions[task].append(part)
    return partitions
