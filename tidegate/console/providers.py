"""Shows a session of this process."""

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
from tidegate.checkpoint.checkpoints import Checkpoint, Checkpoints, Wanted
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.manifests import Manifests
from tidegate.compile.compiler import Compiler
from tidegate.connectors.registry import CONNECTORS
from tidegate.console.graph import Graph, graph_of, graph_of_manifests
from tidegate.errors import RunError, did_you_mean
from tidegate.observe.status import Rate, State, StreamStatus
from tidegate.observe.timeline import KEPT, EpochSums, EpochTimes
from tidegate.physical.explain import explain
from tidegate.plan.rewrite.optimizer import optimise
from tidegate.queries.engine import last_rows
from tidegate.queries.snapshot import stored_readable
from tidegate.runtime.directory import DataDirectory
from tidegate.runtime.status import Counters
from tidegate.runtime.supervisor import forgets
from tidegate.session.saved_catalog import remembered

if TYPE_CHECKING:
    from tidegate.queries.engine import QueryResult
    from tidegate.session.session import Session


# ---- What the console can show, and do.


@dataclass(frozen=True)
class Described:
    """A declaration as SQL, secrets masked, and the plan of a stream."""

    name: str
    sql: str
    plan: str | None = None


class Shown(Protocol):
    """A session, or a data directory. Everything but `statuses` and `epochs` may take a while."""

    title: str
    # Whether streams run in this process; else it only reads what another one has stored.
    live: bool

    def statuses(self) -> tuple[StreamStatus, ...]: ...

    def epochs(self) -> list[EpochTimes]:
        """The last epochs of all pipelines; numbers of a pipeline only grow."""

    def sums(self) -> list[EpochSums]: ...

    def graph(self) -> Graph: ...

    def described(self, name: str) -> Described:
        """Raises what a person can read if there is nothing of that name."""

    def checkpoints(self) -> list[Checkpoint]: ...

    def peek(self, stream: str, rows: int) -> QueryResult: ...

    def keep(self, name: str | None) -> str:
        """Keep a checkpoint; returns its name."""

    def restore(self, wanted: Wanted) -> list[str]:
        """Go back; returns what there is to know about it."""


_PEEK_SECONDS = 5.0


class RunningSession:
    """What a session does now; calls that change something wait for each other."""

    live = True

    def __init__(self, session: Session, title: str) -> None:
        self.title = title
        self._session = session
        self._lock = threading.Lock()

    def statuses(self) -> tuple[StreamStatus, ...]:
        return self._session.status()

    def epochs(self) -> list[EpochTimes]:
        return [epoch for timeline in self._session.timelines() for epoch in timeline.epochs()]

    def sums(self) -> list[EpochSums]:
        return [timeline.sums() for timeline in self._session.timelines()]

    def graph(self) -> Graph:
        return graph_of(self._session.catalog)

    def described(self, name: str) -> Described:
        catalog = self._session.catalog
        declared = catalog.get(name)
        if declared is None:
            hint = did_you_mean(name, catalog.names(), "names")
            raise RunError("TG-201", f"nothing is named {name}", hint=hint)
        plan = self._session.explain(name) if isinstance(declared, Stream) else None
        return Described(declared.name, declared.create_sql(), plan)

    def checkpoints(self) -> list[Checkpoint]:
        return self._session.checkpoints()

    def peek(self, stream: str, rows: int) -> QueryResult:
        with self._lock:
            return self._session.peek(stream, rows, _PEEK_SECONDS)

    def keep(self, name: str | None) -> str:
        with self._lock:
            return self._session.checkpoint(name)

    def restore(self, wanted: Wanted) -> list[str]:
        with self._lock:
            sinks = "keep" if wanted.keep else None
            self._session.restore(wanted.checkpoint, sinks=sinks, pipeline=wanted.pipeline)
            return [warning.message for warning in self._session.warnings]


# ---- Shows a data directory that another process may be using: it reads manifests, and takes no lock.
#
# Only a restore and a checkpoint take the lock, for the moment that they need.


class StoredDirectory:
    """What the newest manifests tell; rates are those of the time since it is looked at."""

    live = False

    def __init__(self, path: str) -> None:
        self.directory = DataDirectory(path)
        self.title = str(self.directory)
        self._newest: dict[str, Manifest] = {}
        self._seen: dict[str, float] = {}
        self._epochs: deque[EpochTimes] = deque(maxlen=KEPT)
        self._rates: dict[str, tuple[Rate, Rate]] = {}
        self._lock = threading.Lock()

    # Looking

    def statuses(self) -> tuple[StreamStatus, ...]:
        with self._lock:
            self._look()
            return tuple(
                self._status(manifest, name)
                for manifest in self._newest.values()
                for name in manifest.streams
            )

    def epochs(self) -> list[EpochTimes]:
        with self._lock:
            return list(self._epochs)

    def sums(self) -> list[EpochSums]:
        return []

    def _look(self) -> None:
        for name in self.directory.pipelines():
            manifest = Manifests(self.directory.pipeline(name)).last()
            before = self._newest.get(name)
            if manifest is not None and (before is None or before.stamp != manifest.stamp):
                self._take(name, manifest, before)

    def _take(self, pipeline: str, manifest: Manifest, before: Manifest | None) -> None:
        now = time.monotonic()
        seconds = now - self._seen.get(pipeline, now)
        self._newest[pipeline], self._seen[pipeline] = manifest, now
        rows_in = rows_out = 0
        for name, stream in manifest.streams.items():
            old = before.streams.get(name) if before is not None else None
            if old is None:
                continue
            rates = self._rates.setdefault(name, (Rate(), Rate()))
            news = (max(stream.rows_in - old.rows_in, 0), max(stream.rows_out - old.rows_out, 0))
            for rate, rows in zip(rates, news, strict=True):
                rate.add(rows, seconds)
            rows_in, rows_out = rows_in + news[0], rows_out + news[1]
        began = manifest.now_us / 1_000_000
        self._epochs.append(EpochTimes(pipeline, manifest.epoch, began, (), rows_in, rows_out))

    def _status(self, manifest: Manifest, name: str) -> StreamStatus:
        stream = manifest.streams[name]
        counters = Counters(name, {}, State.FINISHED if stream.ended else State.RUNNING)
        counters.restore(manifest)
        # Nobody knows here when it was started: all numbers are since the first epoch.
        counters.before = {}
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

    def graph(self) -> Graph:
        catalog = self._catalog()
        with self._lock:
            self._look()
            manifests = list(self._newest.values())
        ran = {name for manifest in manifests for name in manifest.streams}
        if ran <= {name.lower() for name in catalog.names()} and catalog.names():
            return graph_of(catalog)
        return graph_of_manifests(iter(manifests))

    def _catalog(self) -> Catalog:
        """What was declared last, as far as it can be read; secrets are not kept."""
        catalog = Catalog()
        for file, sql in remembered(self.directory).scripts:
            catalog = Compiler(CONNECTORS, catalog).compile(sql, file).catalog
        return catalog

    def described(self, name: str) -> Described:
        catalog = self._catalog()
        declared = catalog.get(name)
        if declared is None:
            hint = did_you_mean(name, catalog.names(), "names that are known here")
            raise RunError("TG-201", f"how {name} was declared is not known here", hint=hint)
        plan = None
        if isinstance(declared, Stream):
            plan = explain(optimise(declared.plan), declared.name)
        return Described(declared.name, declared.create_sql(), plan)

    def peek(self, stream: str, rows: int) -> QueryResult:
        kept = stored_readable(self.directory).get(stream.lower())
        if kept is None:
            raise RunError(
                "TG-802",
                f"the rows of {stream} are not kept, and from here only kept ones can be seen",
                hint=f"CREATE MATERIALIZED VIEW {stream}_now AS SELECT * FROM {stream};",
            )
        return last_rows(self.directory, kept, rows)

    # Checkpoints

    def checkpoints(self) -> list[Checkpoint]:
        return self._checkpoints().listed()

    def _checkpoints(self) -> Checkpoints:
        names = self.directory.pipelines()
        return Checkpoints({n: Manifests(self.directory.pipeline(n)) for n in names}, forgets)

    @contextmanager
    def _alone(self) -> Iterator[Checkpoints]:
        """Refused while another process uses the directory."""
        self.directory.open()
        try:
            yield self._checkpoints()
        finally:
            self.directory.close()

    def keep(self, name: str | None) -> str:
        with self._alone() as checkpoints:
            return next(iter(checkpoints.keep(name).values())).name

    def restore(self, wanted: Wanted) -> list[str]:
        with self._alone() as checkpoints:
            done = checkpoints.restore(wanted)
        return [warning.message for item in done for warning in item.warnings]
