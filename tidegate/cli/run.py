"""`tidegate run`: start the streams of a script, show them, stop them."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import tidegate
from tidegate.cli import data, report, scripts
from tidegate.cli import data as data_directory
from tidegate.cli.console import Watching, watched
from tidegate.cli.guard import Interrupts
from tidegate.cli.screen import Screen, cells, open_screen, show_results
from tidegate.cli.text import Format, LogFormat, formatted, written
from tidegate.errors import RunError
from tidegate.observe.status import State, StreamStatus
from tidegate.queries.engine import QueryResult, ask
from tidegate.queries.snapshot import stored_readable
from tidegate.runtime.directory import DataDirectory

if TYPE_CHECKING:
    from tidegate.session.session import Session

SECONDS_BETWEEN_LOOKS = 0.25
_OVER = {State.FINISHED, State.STOPPED}


@dataclass(frozen=True)
class Ending:
    """How a run ends, if it does by itself."""

    until_end: bool = False
    available_now: bool = False


@dataclass(frozen=True)
class Where:
    """Where a run keeps its data, and what it runs on."""

    data: str | None = None
    master: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)


def run(
    script: scripts.ScriptFile,
    *,
    ending: Ending,
    where: Where,
    fresh: bool,
    watching: Watching,
) -> int:
    """Run a script until it ends or the user has seen enough."""
    # Errors are found before Spark starts, and before anything is removed.
    scripts.require_valid(script, resolve_environment=True)
    directory = where.data or data_directory.default_directory(script.path, script.stem)
    if fresh:
        data_directory.remove(directory, script.path)
    interrupts = Interrupts()
    interrupts.install()
    ends = ending.until_end or ending.available_now
    screen = _screen(interrupts, ends, watching.log)
    with (
        tidegate.open(
            directory, master=where.master, config=where.config, conf=where.conf, show=screen.rows
        ) as session,
        watched(session, watching, screen, script.name or script.stem),
    ):
        try:
            _start(session, script, screen, interrupts, ending)
            _watch(session, screen, interrupts)
        except KeyboardInterrupt:
            # Spark's own handler, from the moment between its start and our next install.
            interrupts.count()
        except Exception:
            screen.end(session.status())
            raise
        statuses = _stop(session, screen, interrupts)
        for line in written(session.catalog, statuses, directory):
            screen.line(line)
    return 0


def _screen(interrupts: Interrupts, ends: bool, log: LogFormat) -> Screen:
    if log is LogFormat.JSON:
        from tidegate.cli.screen import JsonLog

        return JsonLog()
    return open_screen(interrupts.note, ends)


def _start(
    session: Session,
    script: scripts.ScriptFile,
    screen: Screen,
    interrupts: Interrupts,
    ending: Ending,
) -> None:
    with screen.working("starting Spark…"):
        results = session.execute(script.text, script.name)
    interrupts.install()
    report.show(session.warnings, "warning")
    show_results(screen, results)
    if interrupts.requested:
        return
    session.add_console_sinks()
    warnings_before = len(session.warnings)
    with screen.working("starting the streams…"):
        session.start(ending.until_end, ending.available_now)
    interrupts.install()
    report.show(session.warnings[warnings_before:], "warning")


def _watch(session: Session, screen: Screen, interrupts: Interrupts) -> None:
    """Show the streams until all have ended, one fails, or the user wants to stop."""
    while not interrupts.requested:
        statuses = session.status()
        screen.progress(statuses)
        failed = [status for status in statuses if status.state is State.FAILED]
        if failed:
            session.wait(timeout=0)
            raise RunError("TG-503", f"the stream {failed[0].name} stopped: {failed[0].error}")
        if all(status.state in _OVER for status in statuses):
            return
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _stop(session: Session, screen: Screen, interrupts: Interrupts) -> Sequence[StreamStatus]:
    """Stop what still runs; the last counters are those from before."""
    statuses = session.status()
    if interrupts.requested:
        screen.line("stopping…")
        session.stop()
    ended = _stopped(statuses)
    screen.end(ended)
    return ended


def _stopped(statuses: Sequence[StreamStatus]) -> list[StreamStatus]:
    running = {State.STARTING, State.RUNNING}
    return [
        replace(status, state=State.STOPPED) if status.state in running else status
        for status in statuses
    ]


# ---- `tidegate query`: ask a data directory, also while another process is using it. No Spark.


def query(path: str, sql: str, kind: Format | None) -> int:
    """Print what a query finds."""
    data.require(path)
    directory = DataDirectory(path)
    streams = stored_readable(directory)
    if not streams:
        raise RunError(
            "TG-802",
            f"{path} keeps no rows that can be queried",
            hint="CREATE MATERIALIZED VIEW my_view AS SELECT …; in the script that runs there.",
        )
    text = sys.stdin.read() if sql == "-" else sql
    show_rows(ask(directory, streams, text), kind)
    return 0


def show_rows(result: QueryResult, kind: Format | None, title: str = "") -> None:
    """The rows of a result; as a table unless something else is wanted."""
    columns, rows = cells(result.to_arrow())
    if kind is None or kind is Format.TABLE:
        open_screen().table(title, columns, rows)
        return
    out = formatted(kind, columns, rows)
    if out:
        print(out)
