"""`tidegate run` and `tidegate console`: run the streams of a script, and serve their state."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import tidegate
from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import SideStream, Sink, Stream
from tidegate.cli import directory as data_directory
from tidegate.cli import scripts
from tidegate.cli.directory import require_data_directory
from tidegate.cli.errors import Interrupts, UsageError, print_diagnostics
from tidegate.cli.screen import JsonLog, Screen, open_screen, print_results
from tidegate.cli.text import LogFormat
from tidegate.errors import RunError, pluralize
from tidegate.observe.server import LOOPBACK, Address, MetricsServer, StatusSource
from tidegate.observe.status import State, StreamStatus

if TYPE_CHECKING:
    from tidegate.session.session import Session


_POLL_INTERVAL_S = 0.25
_ENDED = {State.FINISHED, State.STOPPED}


@dataclass(frozen=True)
class RunOptions:
    """The options of `tidegate run`."""

    until_end: bool = False
    available_now: bool = False
    data: str | None = None
    fresh: bool = False
    config: Mapping[str, str] = field(default_factory=dict)
    metrics: Address | None = None
    console: Address | None = None
    log_format: LogFormat = LogFormat.TEXT
    master: str | None = None
    spark_conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_bounded(self) -> bool:
        """Whether the run ends at the end of the input."""
        return self.until_end or self.available_now


def run(script: scripts.ScriptFile, options: RunOptions) -> int:
    """Run a script until its streams end or the user stops it."""
    if options.until_end and options.available_now:
        raise UsageError(
            "--until-end and --available-now cannot be combined",
            "use --until-end to close all windows at the end, or --available-now to keep them open "
            "for the next run.",
        )
    # Report errors of the script before Spark starts and before --fresh removes anything.
    scripts.require_valid(script, resolve_environment=True)
    directory = options.data or data_directory.default_directory(script.path, script.stem)
    if options.fresh:
        data_directory.remove_data_directory(directory, script.path)
    interrupts = Interrupts()
    interrupts.install()
    screen: Screen
    if options.log_format is LogFormat.JSON:
        screen = JsonLog()
    else:
        screen = open_screen(interrupts.notice, options.is_bounded)
    title = script.name or script.stem
    with (
        tidegate.open(
            directory,
            master=options.master,
            config=options.config,
            conf=options.spark_conf,
            show=screen.print_rows,
        ) as session,
        serve_session(session, title, screen, options.metrics, options.console),
    ):
        try:
            _start(session, script, screen, interrupts, options)
            _watch(session, screen, interrupts)
        except KeyboardInterrupt:
            # Raised by Spark's handler, which is active until `interrupts` is installed again.
            interrupts.record()
        except Exception:
            screen.print_final_status(session.status())
            raise
        statuses = _stop(session, screen, interrupts)
        for line in _output_lines(session.catalog, statuses, directory):
            screen.print_line(line)
    return 0


def _start(
    session: Session,
    script: scripts.ScriptFile,
    screen: Screen,
    interrupts: Interrupts,
    options: RunOptions,
) -> None:
    with screen.working("starting Spark…"):
        results = session.execute(script.text, script.name)
    interrupts.install()
    print_diagnostics(session.warnings, "warning")
    print_results(screen, results)
    if interrupts.requested:
        return
    session.add_console_sinks()
    warning_count = len(session.warnings)
    with screen.working("starting the streams…"):
        session.start(options.until_end, options.available_now)
    interrupts.install()
    print_diagnostics(session.warnings[warning_count:], "warning")


def _watch(session: Session, screen: Screen, interrupts: Interrupts) -> None:
    """Show progress until all streams have ended, one has failed, or the user stops the run."""
    while not interrupts.requested:
        statuses = session.status()
        screen.show_progress(statuses)
        failed = [status for status in statuses if status.state is State.FAILED]
        if failed:
            session.wait(timeout=0)
            raise RunError("TG-503", f"the stream {failed[0].name} stopped: {failed[0].error}")
        if all(status.state in _ENDED for status in statuses):
            return
        time.sleep(_POLL_INTERVAL_S)


def _stop(session: Session, screen: Screen, interrupts: Interrupts) -> Sequence[StreamStatus]:
    """Stop the streams and print their last status."""
    # Stopping resets the counters.
    statuses = session.status()
    if interrupts.requested:
        screen.print_line("stopping…")
        session.stop()
    stopped = [
        replace(status, state=State.STOPPED)
        if status.state in (State.STARTING, State.RUNNING)
        else status
        for status in statuses
    ]
    screen.print_final_status(stopped)
    return stopped


def _output_lines(
    catalog: Catalog, statuses: Sequence[StreamStatus], directory: str
) -> Iterator[str]:
    """Return for each sink and view how many rows it received, and where they are."""
    by_name = {status.name.lower(): status for status in statuses}
    for sink in catalog.of_type(Sink):
        rows = _received_rows(catalog, sink, by_name)
        target = _target(sink, directory)
        if rows is not None and target is not None:
            yield f"{sink.name}: {pluralize(rows, 'row')} of {sink.stream} → {target}"
    for stream in catalog.of_type(Stream):
        status = by_name.get(stream.name.lower())
        if stream.materialized and status is not None:
            changes = pluralize(status.rows_out, "change")
            yield f"{stream.name}: {changes} → {_query_command(stream.name, directory)}"


def _received_rows(
    catalog: Catalog, sink: Sink, statuses: Mapping[str, StreamStatus]
) -> int | None:
    source = catalog.get(sink.stream)
    if isinstance(source, SideStream) and source.is_from_stream:
        parent = statuses.get(source.parent.lower())
        if parent is not None:
            return parent.late_rows if source.is_late else parent.dead_letters
    status = statuses.get(sink.stream.lower())
    return status.rows_out if status is not None else None


def _target(sink: Sink, directory: str) -> str | None:
    """Return where the rows of a sink are; None if they are not stored."""
    if sink.connector in ("console", "blackhole"):
        return None
    if sink.connector == "memory":
        return _query_command(sink.stream, directory)
    if sink.connector == "files":
        path = sink.options["path"]
        folder = path if "://" in path else Path(sink.script.folder) / path
        return f"{sink.options['format']} in {folder}"
    table = sink.options.get("topic") or sink.options.get("table")
    return f"{sink.connector}{f' {table}' if table else ''}"


def _query_command(stream: str, directory: str) -> str:
    return f'tidegate query {directory} "SELECT * FROM {stream}"'


# ---- The metrics and console servers: of a run, and of a data directory (`tidegate console`)


CONSOLE_ADDRESS = Address(LOOPBACK, 8571)

# ---- Options


def parse_address(option: str, text: str | None, example: str) -> Address | None:
    """Return the address that an option names, or None if the option is missing."""
    if text is None:
        return None
    address = Address.from_text(text)
    if address is None:
        raise UsageError(f"{option} {text}: expected [HOST:]PORT", f"{option} {example}")
    return address


def parse_console_address(enabled: bool, listen: str | None) -> Address | None:
    """Return the address of the console of a run, or None without --console."""
    address = parse_address("--listen", listen, "127.0.0.1:8571")
    if address is not None and not enabled:
        raise UsageError("--listen requires --console", "--console --listen 8571")
    if enabled:
        _require_console()
    return (address or CONSOLE_ADDRESS) if enabled else None


def _require_console() -> None:
    """Raise an error if the optional dependencies of the console are not installed."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise UsageError("the console is not installed", "pip install 'tidegate[console]'")


# ---- Servers


@contextmanager
def serve_session(
    session: Session, title: str, screen: Screen, metrics: Address | None, console: Address | None
) -> Iterator[None]:
    """Serve the metrics and the console of a session at the addresses that are not None."""
    with ExitStack() as servers:
        if metrics is not None:
            metrics_server = MetricsServer(metrics, _status_source(session))
            servers.callback(metrics_server.close)
            screen.print_line(f"metrics: http://{metrics_server.address}/metrics")
        if console is not None:
            from tidegate.console.app import ConsoleServer
            from tidegate.console.providers import SessionProvider

            console_server = ConsoleServer(SessionProvider(session, title), console)
            servers.callback(console_server.close)
            screen.print_line(f"console: {console_server.url}")
        yield


def _status_source(session: Session) -> StatusSource:
    return StatusSource(
        session.status,
        lambda: [timeline.totals() for timeline in session.timelines()],
        tidegate.__version__,
    )


_POLL_INTERVAL_S = 0.25


def console(path: str, address: Address | None) -> int:
    """Serve the console of a data directory until Ctrl-C."""
    require_data_directory(path)
    _require_console()
    from tidegate.console.app import ConsoleServer
    from tidegate.console.providers import DirectoryProvider

    interrupts = Interrupts()
    interrupts.install()
    server = ConsoleServer(DirectoryProvider(path), address or CONSOLE_ADDRESS)
    print(f"console: {server.url}", flush=True)
    try:
        while not interrupts.requested:
            time.sleep(_POLL_INTERVAL_S)
    finally:
        server.close()
    return 0
