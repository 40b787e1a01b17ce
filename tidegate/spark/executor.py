"""Runs a job graph as one Spark job: levels become tasks, and shuffles connect them."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidegate.physical.job_graph import (
    DecodedRows,
    ExposedRows,
    JobGraph,
    Level,
    ShuffleWrite,
    SqlSinks,
    SqlStage,
)
from tidegate.physical.planner import LeafPlan, PhysicalPlan
from tidegate.spark.diagnostics import FailingRow, failing_row
from tidegate.spark.errors import JobFailed
from tidegate.spark.sql_stages import Connectors, SqlFrames, map_in_arrow
from tidegate.spark.tasks.levels import exposed_schema
from tidegate.spark.tasks.protocol import EpochSpec, EpochSpecStore
from tidegate.spark.tasks.shuffle import SHUFFLE_SCHEMA
from tidegate.spark.tasks.sink_write import REPORTS_SCHEMA
from tidegate.spark.tasks.task_functions import (
    decoded_function,
    level_function,
    shuffle_function,
    sink_function,
    unpack_function,
)

if TYPE_CHECKING:
    from tidegate.connectors.base import LookupConnector


@dataclass(frozen=True)
class GraphFrame:
    """The frame of a graph: its rows are task reports. Some frames are cached while it runs."""

    reports: DataFrame
    cached: Sequence[DataFrame]


@dataclass
class SparkExecutor:
    """Runs graphs in a Spark session. The frame of a graph is analyzed once."""

    spark: SparkSession
    epoch_specs: EpochSpecStore
    connectors: Connectors
    _tag: str = field(default_factory=lambda: f"tidegate-{uuid.uuid4().hex[:12]}")
    # A frame lives as long as its graph.
    _frames: WeakKeyDictionary[JobGraph, GraphFrame] = field(default_factory=WeakKeyDictionary)

    @property
    def tasks(self) -> int:
        """The number of tasks that run at the same time."""
        return max(self.spark.sparkContext.defaultParallelism, 1)

    def run(self, graph: JobGraph, epoch_spec: EpochSpec) -> list[bytes]:
        """Run the job of an epoch and return the reports of its tasks."""
        if graph.is_empty:
            return []
        self.spark.sparkContext.setJobDescription(
            f"{', '.join(graph.streams)}, epoch {epoch_spec.epoch}"
        )
        # Spark's own shuffles have as many partitions as there are tasks, not 200.
        self.spark.conf.set("spark.sql.shuffle.partitions", str(graph.tasks))
        self.spark.conf.set("spark.sql.codegen.wholeStage", str(graph.large).lower())
        frame = self._frame(graph, epoch_spec)
        return run_frame(frame)

    def attach(self) -> None:
        """Tag the jobs of this thread."""
        self.spark.addTag(self._tag)

    def cancel(self) -> None:
        """Stop the running job."""
        self.spark.interruptTag(self._tag)

    def forget(self) -> None:
        """Drop all frames, because the streams have changed."""
        self._frames.clear()

    def lookup_versions(self, lookups: Mapping[str, LookupConnector]) -> dict[str, Any]:
        """Return the current version of each lookup table."""
        return {name: lookup.as_of(self.spark) for name, lookup in lookups.items()}

    def failing_row(
        self,
        plan: PhysicalPlan,
        failed: JobFailed,
        epoch_spec: EpochSpec,
        build: Callable[[str, tuple[LeafPlan, ...]], JobGraph],
    ) -> FailingRow | None:
        """Find the expression that failed, and a row on which it does."""

        def query(sql: str, leaves: tuple[LeafPlan, ...]) -> DataFrame:
            return _GraphFrames(self, build(sql, leaves), epoch_spec.now_us).query()

        return failing_row(plan, failed, query)

    def _frame(self, graph: JobGraph, epoch_spec: EpochSpec) -> GraphFrame:
        frame = self._frames.get(graph)
        if frame is None:
            frame = _GraphFrames(self, graph, epoch_spec.now_us).build()
            if not graph.is_single_use:
                self._frames[graph] = frame
        return frame


def run_frame(frame: GraphFrame) -> list[bytes]:
    """Run a frame again and return its reports; its plan is already analyzed."""
    try:
        for cached in frame.cached:
            cached.persist()
        reports: list[bytes] = frame.reports.select("*").toArrow().column("report").to_pylist()
    except (PySparkException, Py4JError) as error:
        # Spark reports a dead worker as a Java exception.
        raise JobFailed(error) from None
    finally:
        for cached in frame.cached:
            cached.unpersist()
    return reports


class _GraphFrames:
    """Builds the frame of a graph, level by level."""

    def __init__(self, executor: SparkExecutor, graph: JobGraph, now_us: int) -> None:
        self.spark = executor.spark
        self.epoch_specs = executor.epoch_specs
        self.graph = graph
        self.sql = SqlFrames(
            executor.spark,
            executor.epoch_specs,
            executor.connectors,
            graph,
            self._exposed,
            now_us,
        )
        # The shuffled rows that enter a level.
        self.shuffled: dict[int, DataFrame] = {}
        # The number of stages in Spark SQL that read rows before a level.
        self.readers = Counter(stage.reads for stage in graph.sql if stage.inputs)
        self.fed = Counter(stage.feeds for stage in graph.sql if stage.feeds is not None)

    def build(self) -> GraphFrame:
        reports = self._chain()
        for stage in self.graph.sql:
            if isinstance(stage.end, SqlSinks):
                frame, write = self.sql.staged(stage, stage.end)
                function = sink_function(write, self.epoch_specs)
                reports.append(map_in_arrow(frame, function, REPORTS_SCHEMA))
        return GraphFrame(_union(reports), self.sql.cached)

    def query(self) -> DataFrame:
        self._chain()
        (stage,) = (stage for stage in self.graph.sql if stage.end is None)
        return self.sql.rows(stage)

    def _chain(self) -> list[DataFrame]:
        """Build the shuffles between levels; return the reports of the last level."""
        depth = len(self.graph.levels) - 1
        start = 0
        while True:
            end = self._last_fused(start)
            rows = self._levels(start, end)
            if end == depth:
                return [rows] if rows is not None else []
            parts = [rows] if rows is not None else []
            parts += [self._sql_rows(stage) for stage in self.graph.sql if stage.feeds == end + 1]
            if self.graph.levels[end + 1].reads:
                parts.append(self._read(Level(self.graph.levels[end + 1].reads)))
            start = end + 1
            self.shuffled[start] = self._shuffle(_union(parts), 1 + self.readers[start])

    def _last_fused(self, start: int) -> int:
        """Return the last level that runs in the same call as `start`.

        With one task there is nothing to shuffle, unless Spark SQL reads or writes rows between two
        levels.
        """
        end, depth = start, len(self.graph.levels) - 1
        while (
            self.graph.tasks == 1
            and end < depth
            and not self.readers[end + 1]
            and not self.fed[end + 1]
            and not self.graph.levels[end + 1].reads
        ):
            end += 1
        return end

    def _levels(self, start: int, end: int) -> DataFrame | None:
        """Return the rows after some levels; reports, if the last level is among them.

        Levels without operators only relay rows. They do it in Python, too: Spark would push a
        condition or a projection below the shuffle, and run a shuffle for each reader.
        """
        graph = self.graph
        levels = graph.levels[start : end + 1]
        is_last = end == len(graph.levels) - 1
        if start == 0 and not any(level.programs for level in levels):
            return None
        reads = start == 0
        rows = self.spark.range(0, graph.tasks, 1, graph.tasks) if reads else self.shuffled[start]
        function = level_function(levels, graph.tasks, reads, is_last, self.epoch_specs)
        return map_in_arrow(rows, function, REPORTS_SCHEMA if is_last else SHUFFLE_SCHEMA)

    def _read(self, level: Level) -> DataFrame:
        """Return the rows that are read for a level."""
        tasks = self.graph.tasks
        numbers = self.spark.range(0, tasks, 1, tasks)
        function = level_function((level,), tasks, True, False, self.epoch_specs)
        return map_in_arrow(numbers, function, SHUFFLE_SCHEMA)

    def _sql_rows(self, stage: SqlStage) -> DataFrame:
        if isinstance(stage.end, DecodedRows):
            records = self.sql.decoded_records(stage, stage.end)
            function = decoded_function(stage.end.branches, self.epoch_specs)
            return map_in_arrow(records, function, SHUFFLE_SCHEMA)
        assert isinstance(stage.end, ShuffleWrite), "the stage feeds a level"
        function = shuffle_function(stage.end, self.epoch_specs)
        return map_in_arrow(self.sql.rows(stage), function, SHUFFLE_SCHEMA)

    def _shuffle(self, rows: DataFrame, readers: int) -> DataFrame:
        """Shuffle rows to the tasks of the next level.

        A single task has all rows already, and a job with one stage is faster. Rows with two
        readers need the shuffle, because Spark then computes them once.
        """
        tasks = self.graph.tasks
        if tasks == 1 and readers == 1:
            return rows.coalesce(1)
        return rows.repartitionById(tasks, F.expr(f"key_group % {tasks}"))

    def _exposed(self, stage: SqlStage, exposed: ExposedRows) -> DataFrame:
        """Return the unpacked rows of a target."""
        # Spark would push a plain comparison below the shuffle, and run a shuffle for each reader.
        condition = f"if(spark_partition_id() < 0, -1, target) = {exposed.target}"
        rows = self.shuffled[stage.reads].where(condition)
        return map_in_arrow(
            rows, unpack_function(exposed, self.epoch_specs), exposed_schema(exposed)
        )


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    union = frames[0]
    for frame in frames[1:]:
        union = union.union(frame)
    return union
