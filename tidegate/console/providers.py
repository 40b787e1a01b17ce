"""The data that the console shows, and its actions.

`ConsoleProvider` is the contract. `SessionProvider` implements it for a session of this process,
`DirectoryProvider` for a data directory that another process may be using.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Stream
from tidegate.checkpoint.checkpoints import Checkpoint, Checkpoints, RestoreRequest
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.manifests import Manifests
from tidegate.compile.compiler import Compiler
from tidegate.connectors.registry import CONNECTORS
from tidegate.console.graph import StreamGraph, graph_of, graph_of_manifests
from tidegate.errors import RunError, did_you_mean
from tidegate.observe.status import Rate, State, StreamStatus
from tidegate.observe.timeline import RETAINED_EPOCHS, EpochDurations, EpochTotals
from tidegate.physical.explain import explain
from tidegate.plan.rewrite.optimizer import optimize
from tidegate.queries.engine import last_rows
from tidegate.queries.snapshot import load_stored_tables
from tidegate.runtime.directory import DataDirectory
from tidegate.runtime.status import StreamCounters
from tidegate.runtime.supervisor import tolerates_restore
from tidegate.session.saved_catalog import load_declarations

if TYPE_CHECKING:
    from tidegate.queries.engine import QueryResult
    from tidegate.session.session import Session


# ---- The contract


@dataclass(frozen=True)
class ObjectDescription:
    """The SQL of a declared object, with secrets masked, and the plan if it is a stream."""

    name: str
    sql: str
    plan: str | None = None


class ConsoleProvider(Protocol):
    """Data and actions of the console.

    `statuses` and `epochs` are called once per second and must be fast. All other methods run in
    worker threads and may block. Methods may be called by several threads at the same time. Errors
    that users can act on are raised as `TidegateError`.
    """

    title: str
    # True if the streams run in this process, False if only their manifests can be read.
    live: bool

    def statuses(self) -> tuple[StreamStatus, ...]:
        """Return the current status of every stream."""

    def epochs(self) -> list[EpochDurations]:
        """Return the recent epochs of all pipelines; the numbers of a pipeline ascend."""

    def epoch_totals(self) -> list[EpochTotals]:
        """Return the totals of every pipeline, for metrics. Empty if not `live`."""

    def graph(self) -> StreamGraph:
        """Return the graph of sources, operators, streams and sinks."""

    def describe(self, name: str) -> ObjectDescription:
        """Return the SQL and plan of a declared object. Raises TG-201 for an unknown name."""

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints that can be restored, by pipeline, newest first."""

    def peek(self, stream: str, rows: int) -> QueryResult:
        """Return up to `rows` recent rows of a stream."""

    def create_checkpoint(self, name: str | None) -> str:
        """Create a named checkpoint and return its name; None generates one."""

    def restore(self, request: RestoreRequest) -> list[str]:
        """Restore a checkpoint and return warnings."""


# ---- A session of this process

# How long a peek waits for rows.
_PEEK_SECONDS = 5.0


class SessionProvider:
    """Provides the data of a session. Peeks, checkpoints and restores run one at a time."""

    live = True

    def __init__(self, session: Session, title: str) -> None:
        self.title = title
        self._session = session
        self._lock = threading.Lock()

    def statuses(self) -> tuple[StreamStatus, ...]:
        return self._session.status()

    def epochs(self) -> list[EpochDurations]:
        return [epoch for timeline in self._session.timelines() for epoch in timeline.epochs()]

    def epoch_totals(self) -> list[EpochTotals]:
        return [timeline.totals() for timeline in self._session.timelines()]

    def graph(self) -> StreamGraph:
        return graph_of(self._session.catalog)

    def describe(self, name: str) -> ObjectDescription:
        catalog = self._session.catalog
        declared = catalog.get(name)
        if declared is None:
            hint = did_you_mean(name, catalog.names(), "names")
            raise RunError("TG-201", f"{name} is not declared", hint=hint)
        plan = self._session.explain(name) if isinstance(declared, Stream) else None
        return ObjectDescription(declared.name, declared.create_sql(), plan)

    def checkpoints(self) -> list[Checkpoint]:
        return self._session.checkpoints()

    def peek(self, stream: str, rows: int) -> QueryResult:
        with self._lock:
            return self._session.peek(stream, rows, _PEEK_SECONDS)

    def create_checkpoint(self, name: str | None) -> str:
        with self._lock:
            return self._session.checkpoint(name)

    def restore(self, request: RestoreRequest) -> list[str]:
        with self._lock:
            sinks = "keep" if request.keep_sink_rows else None
            self._session.restore(request.checkpoint, sinks=sinks, pipeline=request.pipeline)
            return [warning.message for warning in self._session.warnings]


# ---- A data directory


class DirectoryProvider:
    """Provides what the manifests of a data directory contain.

    Reading takes no lock, so another process may be using the directory. Creating and restoring a
    checkpoint take the lock while they run. Rates are those observed since construction.
    """

    live = False

    def __init__(self, path: str) -> None:
        self.directory = DataDirectory(path)
        self.title = str(self.directory)
        # By pipeline: its newest manifest, and when that was read.
        self._newest: dict[str, Manifest] = {}
        self._read_s: dict[str, float] = {}
        self._epochs: deque[EpochDurations] = deque(maxlen=RETAINED_EPOCHS)
        # By stream: the rates of rows in and rows out.
        self._rates: dict[str, tuple[Rate, Rate]] = {}
        self._lock = threading.Lock()

    # Manifests

    def statuses(self) -> tuple[StreamStatus, ...]:
        with self._lock:
            self._read_manifests()
            return tuple(
                self._status(manifest, name)
                for manifest in self._newest.values()
                for name in manifest.streams
            )

    def epochs(self) -> list[EpochDurations]:
        with self._lock:
            return list(self._epochs)

    def epoch_totals(self) -> list[EpochTotals]:
        return []

    def _read_manifests(self) -> None:
        for name in self.directory.pipeline_names():
            manifest = Manifests(self.directory.pipeline(name)).load_newest_without_state_check()
            previous = self._newest.get(name)
            if manifest is not None and (previous is None or previous.stamp != manifest.stamp):
                self._add_epoch(name, manifest, previous)

    def _add_epoch(self, pipeline: str, manifest: Manifest, previous: Manifest | None) -> None:
        now_s = time.monotonic()
        seconds = now_s - self._read_s.get(pipeline, now_s)
        self._newest[pipeline], self._read_s[pipeline] = manifest, now_s
        total_in = total_out = 0
        for name, stream in manifest.streams.items():
            previous_stream = previous.streams.get(name) if previous is not None else None
            if previous_stream is None:
                continue
            # A restore resets the counters.
            rows_in = max(stream.rows_in - previous_stream.rows_in, 0)
            rows_out = max(stream.rows_out - previous_stream.rows_out, 0)
            rate_in, rate_out = self._rates.setdefault(name, (Rate(), Rate()))
            rate_in.add(rows_in, seconds)
            rate_out.add(rows_out, seconds)
            total_in, total_out = total_in + rows_in, total_out + rows_out
        started_at = manifest.processing_time_us / 1_000_000
        epoch = EpochDurations(pipeline, manifest.epoch, started_at, (), total_in, total_out)
        self._epochs.append(epoch)

    def _status(self, manifest: Manifest, name: str) -> StreamStatus:
        stream = manifest.streams[name]
        counters = StreamCounters(name, {}, State.FINISHED if stream.ended else State.RUNNING)
        counters.restore(manifest)
        # Manifests do not contain the start of the process: count from the first epoch.
        counters.initial_operators = {}
        rates = self._rates.get(name)
        return replace(
            counters.status(),
            epoch=manifest.epoch,
            rows_in=stream.rows_in,
            rows_out=stream.rows_out,
            rows_in_per_second=rates[0].per_second() if rates else 0.0,
            rows_out_per_second=rates[1].per_second() if rates else 0.0,
            dead_letters=stream.dead_letters,
        )

    # Declarations

    def graph(self) -> StreamGraph:
        catalog = self._catalog()
        with self._lock:
            self._read_manifests()
            manifests = list(self._newest.values())
        stream_names = {name for manifest in manifests for name in manifest.streams}
        if stream_names <= {name.lower() for name in catalog.names()} and catalog.names():
            return graph_of(catalog)
        return graph_of_manifests(iter(manifests))

    def _catalog(self) -> Catalog:
        """Compile the declarations that the last session saved; they contain no secrets."""
        catalog = Catalog()
        for file, sql in load_declarations(self.directory).scripts:
            catalog = Compiler(CONNECTORS, catalog).compile(sql, file).catalog
        return catalog

    def describe(self, name: str) -> ObjectDescription:
        catalog = self._catalog()
        declared = catalog.get(name)
        if declared is None:
            hint = did_you_mean(name, catalog.names(), "declared names")
            raise RunError(
                "TG-201",
                f"the data directory does not contain the declaration of {name}",
                hint=hint,
            )
        plan = None
        if isinstance(declared, Stream):
            plan = explain(optimize(declared.plan), declared.name)
        return ObjectDescription(declared.name, declared.create_sql(), plan)

    def peek(self, stream: str, rows: int) -> QueryResult:
        stored_rows = load_stored_tables(self.directory).get(stream.lower())
        if stored_rows is None:
            raise RunError(
                "TG-802",
                f"the data directory does not store the rows of {stream}",
                hint=f"CREATE MATERIALIZED VIEW {stream}_now AS SELECT * FROM {stream};",
            )
        return last_rows(self.directory, stored_rows, rows)

    # Checkpoints

    def checkpoints(self) -> list[Checkpoint]:
        return self._checkpoints().list_all()

    def _checkpoints(self) -> Checkpoints:
        names = self.directory.pipeline_names()
        return Checkpoints(
            {n: Manifests(self.directory.pipeline(n)) for n in names}, tolerates_restore
        )

    @contextmanager
    def _locked(self) -> Iterator[Checkpoints]:
        """Hold the lock of the directory. Raises TG-602 if another process holds it."""
        self.directory.open()
        try:
            yield self._checkpoints()
        finally:
            self.directory.close()

    def create_checkpoint(self, name: str | None) -> str:
        with self._locked() as checkpoints:
            return next(iter(checkpoints.create(name).values())).name

    def restore(self, request: RestoreRequest) -> list[str]:
        with self._locked() as checkpoints:
            results = checkpoints.restore(request)
        return [warning.message for result in results for warning in result.warnings]
