"""One stream and all its sinks as one Spark streaming query.

Every epoch, each sink stages its rows, then each commits. After a crash Spark repeats the epoch
from the same offsets; a sink that has committed it already is left alone. Rows that came too late
for the operators of a stream go to the sinks of its late stream in the same epoch.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.connector import Connectors
from tidegate.catalog.objects import SideStream, Source
from tidegate.catalog.settings import Settings
from tidegate.columns import LIVE
from tidegate.errors import RunError, TidegateError
from tidegate.observe.status import State, StreamStatus
from tidegate.operators.limits import Limits
from tidegate.physical.first_filter import by_name, first_filter, keeps_rows
from tidegate.physical.plan import PhysicalPlan, ScanPlan, plan_physical
from tidegate.physical.typed import TypedPlan
from tidegate.plan import nodes as n
from tidegate.runtime.connector import SinkWriter, SourceContext, SourceReader
from tidegate.runtime.control import FOLDER as CONTROL
from tidegate.runtime.control import beat, end_input, has_ended
from tidegate.runtime.counters import Counters
from tidegate.runtime.directory import DataDirectory
from tidegate.spark.failure import pipeline_error
from tidegate.spark.listener import ProgressListener
from tidegate.spark.lowering import LoweringContext, lower
from tidegate.spark.outputs import Outputs
from tidegate.spark.processor import ReportParam
from tidegate.spark.sources import SourceFrame, source_frame
from tidegate.spark.spark_session import set_batches, set_check

# How often the clock is looked at while no rows come.
BEAT_SECONDS = 1.0
# How long a query that has failed may take to end.
_FAILING_SECONDS = 30
_STARTING = threading.Lock()


@dataclass(frozen=True)
class PipelineContext:
    """What a pipeline needs from its session."""

    spark: SparkSession
    catalog: Catalog
    settings: Settings
    directory: DataDirectory
    connectors: Connectors
    readers: Mapping[str, SourceReader]
    listener: ProgressListener


class SparkPipeline:
    """Runs one stream."""

    def __init__(
        self,
        context: PipelineContext,
        name: str,
        typed: TypedPlan,
        late: SideStream | None = None,
    ) -> None:
        self.context = context
        self.name = name
        self.id = ""
        self.typed = typed
        self.key_groups = 0
        self.late_stream = late
        self.counters = Counters(name, control=self.control)
        self.outputs = Outputs(typed.plan)
        self.plan = self._planned()
        self.sinks: set[str] = set()
        self.failure: TidegateError | None = None
        self.query: StreamingQuery | None = None
        self.until_end = False
        self._trigger_us = 0
        self._direct = False
        self._narrow = True
        # The filter of the query that its source has applied already.
        self._first: n.Filter | None = None
        self._ended = threading.Event()
        self._ending: threading.Thread | None = None
        self._stopping = False
        self._reports: Any = None
        self._ending_now = False
        self._heart: threading.Thread | None = None
        self._waiting = False
        self.warnings: list[TidegateError] = []

    @property
    def folder(self) -> Path:
        return self.context.directory.pipeline(self.name)

    @property
    def control(self) -> Path:
        return self.folder / CONTROL

    # Starting

    def add_writer(self, name: str, writer: SinkWriter, late: bool = False) -> None:
        """Add a sink; while the pipeline runs it takes part from the next epoch on."""
        writer.prepare()
        self.outputs.add(writer, late)
        self.sinks.add(name)

    def takes_writers(self, late: bool = False) -> bool:
        """Whether a sink can join while it runs: not what Spark writes without our epochs."""
        return not self._direct and (not late or self.outputs.late is not None)

    def start(self, until_end: bool, trigger_us: int = 0) -> None:
        assert self.outputs.some, f"the stream {self.name} has nowhere to write"
        self.until_end = until_end
        self.failure = None
        self._trigger_us = trigger_us
        self._stopping = False
        self.counters.restore(self.folder / "event_times.json")
        if self.plan.operators:
            spark = self.context.spark
            self._reports = spark.sparkContext.accumulator({}, ReportParam())
            self.counters.reports = lambda: dict(self._reports.value)
        try:
            self._launch()
        except PySparkException as error:
            raise pipeline_error(self.name, error) from None
        self.counters.state = State.RUNNING
        if not until_end and self.plan.needs_clock:
            self._heart = threading.Thread(target=self._beat, daemon=True)
            self._heart.start()
        if until_end and self.plan.operators:
            self._ended.clear()
            self._ending = threading.Thread(target=self._run_to_end, daemon=True)
            self._ending.start()

    def _launch(self) -> StreamingQuery:
        writer = self._frame().writeStream.outputMode("append")
        direct = self.outputs.direct_format()
        self._direct = direct is not None
        if direct is not None:
            writer = writer.format(direct)
        else:
            writer = writer.foreachBatch(self._epoch)
        writer = writer.option("checkpointLocation", str(self.folder / "spark" / "0"))
        if self.until_end:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self._trigger_us // 1000} milliseconds")
        with _STARTING:
            # Spark takes the settings of a query from its session when it starts.
            set_batches(self.context.spark, self._narrow)
            set_check(self.context.spark, self._first is None)
            query = writer.start()
        self.query = query
        self.context.listener.watch(str(query.runId), self.counters.add)
        return query

    def _beat(self) -> None:
        """While no rows come, ask for an epoch now and then, so that the clock is seen."""
        while not self._stopping:
            time.sleep(BEAT_SECONDS)
            query = self.query
            if query is None or not query.isActive:
                return
            status = query.status
            idle = not status["isDataAvailable"] and not status["isTriggerActive"]
            if idle and not self._waiting and not self._stopping:
                beat(self.control)

    def _run_to_end(self) -> None:
        """After the last row comes the end of time, in an epoch of its own."""
        try:
            query = self.query
            assert query is not None, "it was launched"
            with contextlib.suppress(PySparkException):
                query.awaitTermination()
            if query.exception() is not None or self._stopping:
                return
            self._drain(query)
            self._ending_now = True
            end_input(self.control)
            query = self._launch()
            with contextlib.suppress(PySparkException):
                query.awaitTermination()
        except (PySparkException, TidegateError) as error:
            self.failure = pipeline_error(self.name, error)
        finally:
            self._ended.set()

    def _frame(self) -> DataFrame:
        """The whole plan as a streaming frame."""
        self.plan = self._planned()
        context = LoweringContext(
            self.context.spark, self._scan, self.control, self.key_groups, self._reports
        )
        lowered = lower(self.plan, context)
        frame = lowered.frame
        self.outputs.late = self.plan.late
        self._narrow = lowered.narrow
        self._note_end()
        if self.late_stream is not None:
            self.outputs.late_names = tuple(c.name for c in self.late_stream.columns)
        if not frame.isStreaming:
            raise RunError(
                "TG-505",
                f"the stream {self.name} reads no source, so there is nothing to wait for",
                hint="select FROM a source or a stream.",
            )
        # Where every usable row comes out once, nobody must count them again.
        self.counters.keeps_rows = keeps_rows(self.typed.plan, self._first)
        if self.counters.keeps_rows:
            return frame
        counted = F.count_if(F.col(LIVE)) if self.plan.carries_late else F.count(F.lit(1))
        return frame.observe("out", counted.alias("rows"))

    def _note_end(self) -> None:
        """Say what a start on old data means for the result."""
        if not self.plan.operators or self.warnings:
            return
        if has_ended(self.control) and not self._ending_now:
            self.warnings.append(
                RunError(
                    "TG-607",
                    f"the stream {self.name} was run to its end before: all its windows are "
                    "closed, and rows that come now are late",
                    hint=f"to start from the beginning, remove its data: rm -r {self.folder}",
                )
            )

    def _planned(self) -> PhysicalPlan:
        settings = self.context.settings
        limits = Limits(settings["max_groups"], settings["max_state_bytes"])
        keeps_late = self.late_stream is not None and bool(self.outputs.late_writers)
        return plan_physical(self.name, self.typed, limits, keeps_late)

    def _scan(self, scan: ScanPlan) -> DataFrame:
        node = scan.node
        if isinstance(node, n.SideScan):
            return self._dead_letters(node.side, scan.index).bad()
        source = node.source
        frame = self._source(source, scan.index, scan.arrival)
        watermark = source.watermark
        if watermark is not None:
            self.counters.delays_us[frame.metric] = watermark.delay_us
        if self.plan.operators:
            # Operators know the time from their ticks; without them it is taken from the rows.
            return frame.good(timed=False)
        self._first = first_filter(self.typed.plan) if frame.can_filter else None
        return frame.good(kept=by_name(self._first) if self._first is not None else None)

    def _source(
        self, source: Source, index: int, arrival: bool = False, located: bool = False
    ) -> SourceFrame:
        reader = self.context.readers[source.connector]
        directory = self.context.directory.source(source.name)
        asked = SourceContext(source, directory, self.context.settings, arrival, located)
        raw = reader(self.context.spark, asked)
        spec = self.context.connectors[source.connector].source
        assert spec is not None, "a declared source has a source connector"
        return source_frame(source, raw, f"source_{index}", spec.counted_by_spark(source.options))

    def _dead_letters(self, side: SideStream, index: int) -> SourceFrame:
        parent = self.context.catalog.get(side.parent)
        assert isinstance(parent, Source), "late rows are not read by other streams"
        return self._source(parent, index, located=True)

    # Epochs

    def _epoch(self, frame: DataFrame, epoch: int) -> None:
        try:
            self.outputs.write(frame, epoch)
        except Exception as error:
            # Spark would pass on a Python traceback as text: the cause is kept here.
            self.failure = pipeline_error(self.name, error)
            raise

    # Watching and ending

    def wait(self, timeout: float | None) -> bool:
        """Until the rows that are there now are done (or, until_end, all is done)."""
        query = self.query
        assert query is not None, f"the stream {self.name} is not started"
        try:
            if self._ending is not None:
                done = self._ended.wait(timeout)
                query = self.query or query
            elif self.until_end:
                done = _await_end(query, timeout)
            else:
                # Beats would keep it from ever being done.
                self._waiting = True
                done = _process_available(query, timeout)
        except PySparkException:
            # It may be told before the query has quite ended.
            _await_failed(query)
            done = True
        finally:
            self._waiting = False
        self.is_alive()
        self._drain(query)
        return done

    def is_alive(self) -> bool:
        """Whether more epochs may come; raises the error of a query that failed."""
        done = self._all_done()
        # Asked for after that, it is the last one; and asked once, as it may end in between.
        query = self.query
        if query is None or self.counters.state is State.STOPPED:
            return False
        if not done or query.isActive:
            return True
        failure = query.exception()
        if failure is None and self.failure is None:
            self.counters.state = State.FINISHED
            return False
        error = self.failure or pipeline_error(self.name, failure or RuntimeError("it ended"))
        self.failure = error
        self.counters.state = State.FAILED
        self.counters.error = error.message
        raise error

    def _all_done(self) -> bool:
        """Whether nothing follows the query that runs now."""
        return self._ending is None or self._ended.is_set()

    def stop(self) -> None:
        query = self.query
        if query is None:
            return
        self._stopping = True
        if query.isActive or not self._all_done():
            self.counters.state = State.STOPPED
            query.stop()
        if self._ending is not None:
            if self.query is not None and self.query is not query:
                self.query.stop()
            self._ending.join(timeout=30)
            self._ending = None
        self._drain(query)
        self.context.listener.forget(str(query.runId))
        self.query = None

    def _drain(self, query: StreamingQuery) -> None:
        """Progress reports come a moment later than the epoch: take what the query still has."""
        for progress in query.recentProgress:
            if self.counters.epoch is None or progress["batchId"] > self.counters.epoch:
                self.counters.add(_as_dict(progress))

    def status(self) -> StreamStatus:
        if self.query is not None and not self.query.isActive:
            with contextlib.suppress(TidegateError):
                self.is_alive()
            self._drain(self.query)
        return self.counters.status()


def _as_dict(progress: Any) -> dict[str, Any]:
    return dict(json.loads(progress.json))


def _await_end(query: StreamingQuery, timeout: float | None) -> bool:
    if timeout is None:
        query.awaitTermination()
        return True
    # Spark's annotation says int, but it takes fractions of a second.
    return bool(query.awaitTermination(max(timeout, 0.001)))  # type: ignore[arg-type]


def _await_failed(query: StreamingQuery) -> None:
    with contextlib.suppress(PySparkException):
        query.awaitTermination(_FAILING_SECONDS)


def _process_available(query: StreamingQuery, timeout: float | None) -> bool:
    """Spark's call has no time-out of its own, so it waits in a thread."""
    if timeout is None:
        query.processAllAvailable()
        return True
    raised: list[BaseException] = []

    def work() -> None:
        try:
            query.processAllAvailable()
        except PySparkException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(timeout)
    if raised:
        raise raised[0]
    return not thread.is_alive()
