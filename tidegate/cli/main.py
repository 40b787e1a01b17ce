"""The commands and their options."""

from __future__ import annotations

import contextlib
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TextIO

import typer

import tidegate
from tidegate.cli.guard import OPTIONS, guarded
from tidegate.cli.text import Format, LogFormat

app = typer.Typer(
    name="tidegate",
    help="Streaming SQL for Python on Apache Spark.",
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Debug = Annotated[bool, typer.Option("--debug", help="Show stack traces.")]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Where state and offsets are kept, a path or a URI; .tidegate/<file> by default.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="A Spark master; this machine by default."),
]

Variables = Annotated[
    list[str] | None,
    typer.Option("--var", metavar="NAME=VALUE", help="What ${NAME} in the SQL stands for."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark: spark.driver.memory=4g."),
]

Directory = Annotated[str, typer.Argument(metavar="DIR", help="A data directory.")]
Listen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="[HOST:]PORT",
        help="Where the console listens; 127.0.0.1:8571 by default, 0 for any free port.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="As JSON, for other programs.")]


class OnChange(StrEnum):
    """What to do about streams that changed."""

    REJECTE = "reject"
    CONTINUE = "continue"
    RESTART = "restart"


def _version(wanted: bool) -> None:
    if not wanted:
        return
    typer.echo(f"tidegate {tidegate.__version__}")
    raise typer.Exit


@app.callback()
def _options(
    debug: Debug = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    OPTIONS.debug = debug


@app.command()
@guarded
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help="SQL files; - reads stdin.")],
    var: Variables = None,
    debug: Debug = False,
) -> int:
    """Find every error in SQL files, without running them."""
    from tidegate.cli import scripts
    from tidegate.cli.scripts import variables

    return scripts.check(files, variables(var or []))


@app.command()
@guarded
def explain(
    file: Annotated[str, typer.Argument(help="A SQL file; - reads stdin.")],
    stream: Annotated[str | None, typer.Argument(help="One stream; all by default.")] = None,
    logical: Annotated[
        bool, typer.Option("--logical", help="The plans before they are optimized.")
    ] = False,
    var: Variables = None,
    debug: Debug = False,
) -> int:
    """Show the plans of streams: operators, state bounds, watermarks."""
    from tidegate.cli import scripts
    from tidegate.cli.scripts import variables

    return scripts.explain(file, stream, logical, variables(var or []))


@app.command()
@guarded
def run(
    file: Annotated[str, typer.Argument(help="A SQL file; - reads stdin.")],
    until_end: Annotated[
        bool,
        typer.Option("--until-end", help="Read what there is, close every window, and end."),
    ] = False,
    available_now: Annotated[
        bool,
        typer.Option("--available-now", help="Read what there is and end; windows stay open."),
    ] = False,
    data: Data = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Remove the data directory first.")
    ] = False,
    on_change: Annotated[
        OnChange | None,
        typer.Option(
            "--on-change",
            help="What happens to streams whose query changed since their last epoch.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="[HOST:]PORT",
            help="Serve /metrics for Prometheus, /health and /ready; to this machine by default.",
        ),
    ] = None,
    console: Annotated[
        bool, typer.Option("--console", help="Show everything in the browser (extra: console).")
    ] = False,
    listen: Listen = None,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="json: one object per line, for machines.")
    ] = LogFormat.TEXT,
    var: Variables = None,
    master: Master = None,
    conf: Conf = None,
    debug: Debug = False,
) -> int:
    """Run the streams of a SQL file and show how they are doing; Ctrl-C stops them.

    The next run resumes from the last committed epoch.
    """
    from tidegate.cli import console as watching
    from tidegate.cli import report, scripts
    from tidegate.cli import run as command
    from tidegate.cli.scripts import spark_conf, variables

    report.STYLE.json = log_format is LogFormat.JSON
    served = watching.Watching(
        watching.address("--metrics", metrics, "9464"),
        watching.console_address(console, listen),
        log_format,
    )
    script = scripts.read(file, variables(var or []))
    ending = command.Ending(until_end, available_now)
    config = {"on_change": on_change.value} if on_change is not None else {}
    where = command.Where(data, master, config, spark_conf(conf or []))
    return command.run(script, ending=ending, where=where, fresh=fresh, watching=served)


@app.command()
@guarded
def sql(
    file: Annotated[str | None, typer.Argument(help="A SQL file to begin with.")] = None,
    data: Data = None,
    var: Variables = None,
    master: Master = None,
    conf: Conf = None,
    debug: Debug = False,
) -> int:
    """Talk SQL: an interactive shell, or a script from stdin."""
    from tidegate.cli import scripts, shell
    from tidegate.cli.scripts import spark_conf, variables

    script = scripts.read(file, variables(var or [])) if file is not None else None
    return shell.run(script, data=data, master=master, conf=spark_conf(conf or []))


@app.command()
@guarded
def query(
    directory: Directory,
    text: Annotated[str, typer.Argument(metavar="SQL", help="A SELECT; - reads stdin.")],
    kind: Annotated[
        Format | None, typer.Option("--format", help="How rows are written; a table by default.")
    ] = None,
    debug: Debug = False,
) -> int:
    """Query the stored rows of streams, also while another process runs them.

    Materialized views and streams with a memory sink can be asked, in DuckDB's SQL.
    """
    from tidegate.cli import run as command

    return command.query(directory, text, kind)


@app.command()
@guarded
def checkpoints(directory: Directory, as_json: Json = False, debug: Debug = False) -> int:
    """List the checkpoints of a data directory, also while it is in use."""
    from tidegate.cli import checkpoints as command

    return command.checkpoints(directory, as_json)


@app.command()
@guarded
def inspect(
    directory: Directory,
    epoch: Annotated[
        int | None, typer.Option("--epoch", help="An epoch that is kept; the newest by default.")
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option("--pipeline", help="One pipeline; all by default.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Show what an epoch has decided: sources with offsets, operators with state, sinks."""
    from tidegate.cli import checkpoints as command

    return command.inspect(directory, epoch, pipeline, as_json)


@app.command()
@guarded
def console(directory: Directory, listen: Listen = None, debug: Debug = False) -> int:
    """Look at a data directory in the browser, also while another process is using it."""
    from tidegate.cli import console as command
    from tidegate.cli.console import address

    return command.console(directory, address("--listen", listen, "127.0.0.1:8571"))


@app.command()
@guarded
def package(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write.")] = Path(
        "tidegate.zip"
    ),
    debug: Debug = False,
) -> int:
    """Write the package as an archive for the machines of a cluster (spark.submit.pyFiles)."""
    from tidegate.cli import init as command

    return command.package(file)


@app.command()
@guarded
def prune(
    directory: Directory,
    streams: Annotated[
        list[str] | None, typer.Argument(metavar="[STREAM…]", help="The streams that go.")
    ] = None,
    script: Annotated[
        list[str] | None,
        typer.Option("--script", metavar="FILE", help="All streams go that it does not declare."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be removed.")
    ] = False,
    debug: Debug = False,
) -> int:
    """Remove stored data of streams that the scripts do not declare anymore.

    Offsets, state and rows for subscribers go, and files that no epoch needs; what sinks have
    written stays. Nothing may run on the directory meanwhile.
    """
    from tidegate.cli import prune as command

    return command.prune(directory, streams or [], script or [], dry_run)


@app.command()
@guarded
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A directory that is new, or empty.")
    ],
    debug: Debug = False,
) -> int:
    """Write a small project that runs: a source, streams, a sink, a view and a test."""
    from tidegate.cli import init as command

    return command.init(folder)


@app.command()
@guarded
def test(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH…", help="Case files, or directories of them.")
    ],
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Name every case, not only failures.")
    ] = False,
    debug: Debug = False,
) -> int:
    """Run test cases for streaming SQL: rows in, expected rows out."""
    from tidegate import testing

    # Cases are short: Java that compiles for the long run takes half of their time.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    return testing.main(paths, verbose)


def main() -> None:
    """The entry point of the `tidegate` command."""
    for stream in (sys.stdout, sys.stderr):
        _replace_unprintable(stream)
    try:
        app(prog_name="tidegate")
    except SystemExit as done:
        _leave(done)


def _leave(done: SystemExit) -> None:
    """End at once where Spark ran.

    While Python cleans up it has no handler any more: a Ctrl-C then would end the process by the
    signal, after everything had gone well. Spark ends by itself when this process is gone.
    """
    if "pyspark" not in sys.modules or not isinstance(done.code, int | None):
        raise done
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(done.code or 0)


def _replace_unprintable(stream: TextIO) -> None:
    """Plans are drawn with characters that some encodings lack; a ? is better than a failure."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


if __name__ == "__main__":
    main()
