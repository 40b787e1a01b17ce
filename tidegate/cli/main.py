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
from tidegate.cli.errors import OPTIONS, handle_errors
from tidegate.cli.text import LogFormat, RowFormat

app = typer.Typer(
    name="tidegate",
    help="Streaming SQL for Python on Apache Spark.",
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Debug = Annotated[bool, typer.Option("--debug", help="Show the stack trace of an error.")]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Directory for state and offsets, a path or a URI; .tidegate/<file> by default.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark master; the local machine by default."),
]
Variables = Annotated[
    list[str] | None,
    typer.Option("--var", metavar="NAME=VALUE", help="Value of ${NAME} in the SQL."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", metavar="KEY=VALUE", help="Spark setting, such as spark.driver.memory=4g."
    ),
]
Directory = Annotated[str, typer.Argument(metavar="DIR", help="Data directory.")]
Listen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="[HOST:]PORT",
        help="Address of the console; 127.0.0.1:8571 by default, port 0 for any free port.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class OnChange(StrEnum):
    """How to start streams whose query has changed."""

    REJECT = "reject"
    CONTINUE = "continue"
    RESTART = "restart"


def _print_version(enabled: bool) -> None:
    if not enabled:
        return
    typer.echo(f"tidegate {tidegate.__version__}")
    raise typer.Exit


@app.callback()
def _set_options(
    debug: Debug = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    OPTIONS.debug = debug


@app.command()
@handle_errors
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help="SQL files; - reads stdin.")],
    var: Variables = None,
    debug: Debug = False,
) -> int:
    """Find errors in SQL files without running them.

    Reports all errors at once. Does not start Spark, so it does not find errors in the types of
    expressions. It also accepts options with environment variables that are not set. `tidegate run`
    reports both before the first epoch.
    """
    from tidegate.cli import scripts

    return scripts.check(files, scripts.parse_variables(var or []))


@app.command()
@handle_errors
def explain(
    file: Annotated[str, typer.Argument(help="SQL file; - reads stdin.")],
    stream: Annotated[
        str | None, typer.Argument(help="Stream to explain; all streams by default.")
    ] = None,
    logical: Annotated[
        bool, typer.Option("--logical", help="Show the plans before optimization.")
    ] = False,
    var: Variables = None,
    debug: Debug = False,
) -> int:
    """Show the plans of streams: operators, state bounds and watermarks."""
    from tidegate.cli import scripts

    return scripts.explain(file, stream, logical, scripts.parse_variables(var or []))


@app.command()
@handle_errors
def run(
    file: Annotated[str, typer.Argument(help="SQL file; - reads stdin.")],
    until_end: Annotated[
        bool,
        typer.Option(
            "--until-end", help="Process all available input, close all windows, and exit."
        ),
    ] = False,
    available_now: Annotated[
        bool,
        typer.Option(
            "--available-now", help="Process all available input and exit; windows stay open."
        ),
    ] = False,
    data: Data = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Remove the data directory first. Sinks keep their rows, so files, postgres and "
            "delta sinks then reject the run (TG-525).",
        ),
    ] = False,
    on_change: Annotated[
        OnChange | None,
        typer.Option(
            "--on-change",
            help="How to start streams whose query has changed since their last epoch.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="[HOST:]PORT",
            help="Serve /metrics for Prometheus, /health and /ready; on 127.0.0.1 by default.",
        ),
    ] = None,
    console: Annotated[
        bool,
        typer.Option("--console", help="Serve the console for browsers (extra: console)."),
    ] = False,
    listen: Listen = None,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="Log format; json prints one object per line.")
    ] = LogFormat.TEXT,
    var: Variables = None,
    master: Master = None,
    conf: Conf = None,
    debug: Debug = False,
) -> int:
    """Run the streams of a SQL file and show their progress; Ctrl-C stops them.

    The next run resumes from the last committed epoch.
    """
    from tidegate.cli import run as command
    from tidegate.cli import scripts

    OPTIONS.json = log_format is LogFormat.JSON
    options = command.RunOptions(
        until_end=until_end,
        available_now=available_now,
        data=data,
        fresh=fresh,
        config={"on_change": on_change.value} if on_change is not None else {},
        metrics=command.parse_address("--metrics", metrics, "9464"),
        console=command.parse_console_address(console, listen),
        log_format=log_format,
        master=master,
        spark_conf=scripts.parse_spark_conf(conf or []),
    )
    return command.run(scripts.read(file, scripts.parse_variables(var or [])), options)


@app.command()
@handle_errors
def sql(
    file: Annotated[str | None, typer.Argument(help="SQL file to run first.")] = None,
    data: Data = None,
    var: Variables = None,
    master: Master = None,
    conf: Conf = None,
    debug: Debug = False,
) -> int:
    """Open an interactive SQL shell, or run a script from stdin."""
    from tidegate.cli import scripts, shell

    variables = scripts.parse_variables(var or [])
    script = scripts.read(file, variables) if file is not None else None
    spark_conf = scripts.parse_spark_conf(conf or [])
    return shell.run(script, data=data, master=master, spark_conf=spark_conf)


@app.command()
@handle_errors
def query(
    directory: Directory,
    text: Annotated[str, typer.Argument(metavar="SQL", help="SELECT statement; - reads stdin.")],
    row_format: Annotated[
        RowFormat | None,
        typer.Option("--format", help="Format of the rows; a table by default."),
    ] = None,
    debug: Debug = False,
) -> int:
    """Query the stored rows of streams, even while another process runs them.

    Materialized views and streams with a memory sink can be queried, in DuckDB SQL.
    """
    from tidegate.cli import directory as command

    return command.query(directory, text, row_format)


@app.command()
@handle_errors
def checkpoints(directory: Directory, as_json: Json = False, debug: Debug = False) -> int:
    """List the checkpoints of a data directory, even while it is in use."""
    from tidegate.cli import directory as command

    return command.checkpoints(directory, as_json)


@app.command()
@handle_errors
def inspect(
    directory: Directory,
    epoch: Annotated[
        int | None, typer.Option("--epoch", help="Stored epoch; the newest by default.")
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option("--pipeline", help="Pipeline; all pipelines by default.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Show the manifest of an epoch: source offsets, operator state and sinks."""
    from tidegate.cli import directory as command

    return command.inspect(directory, epoch, pipeline, as_json)


@app.command()
@handle_errors
def console(directory: Directory, listen: Listen = None, debug: Debug = False) -> int:
    """Show a data directory in the browser, even while another process uses it."""
    from tidegate.cli import run as command

    return command.console(directory, command.parse_address("--listen", listen, "127.0.0.1:8571"))


@app.command()
@handle_errors
def package(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Archive to write.")] = Path(
        "tidegate.zip"
    ),
    debug: Debug = False,
) -> int:
    """Write the tidegate package as an archive for a cluster (spark.submit.pyFiles)."""
    from tidegate.cli import init as command

    return command.package(file)


@app.command()
@handle_errors
def prune(
    directory: Directory,
    streams: Annotated[
        list[str] | None, typer.Argument(metavar="[STREAM…]", help="Streams to remove.")
    ] = None,
    script: Annotated[
        list[str] | None,
        typer.Option(
            "--script", metavar="FILE", help="Remove all streams that this file does not declare."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the data that would be removed.")
    ] = False,
    debug: Debug = False,
) -> int:
    """Remove the stored data of undeclared streams.

    Removes offsets, state, and rows for subscribers; keeps the output of sinks.

    Also removes files that no epoch needs. The directory must not be in use.
    """
    from tidegate.cli import directory as command

    return command.prune(directory, streams or [], script or [], dry_run)


@app.command()
@handle_errors
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty directory.")],
    debug: Debug = False,
) -> int:
    """Write a small project: a source, streams, a sink, a view and a test."""
    from tidegate.cli import init as command

    return command.init(folder)


@app.command()
@handle_errors
def test(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH…", help="Files with test cases, or their directories."),
    ],
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print all test cases, not only failures.")
    ] = False,
    debug: Debug = False,
) -> int:
    """Run test cases for streaming SQL: input rows and expected output rows."""
    from tidegate import testing

    # Test cases are short. Optimizing JIT compilation would take half of their time.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    return testing.main(paths, verbose)


def main() -> None:
    """Run the `tidegate` command."""
    for stream in (sys.stdout, sys.stderr):
        _replace_unencodable(stream)
    try:
        app(prog_name="tidegate")
    except SystemExit as exit_:
        _exit(exit_)


def _exit(exit_: SystemExit) -> None:
    """Exit without the cleanup of the interpreter if Spark was started.

    During the cleanup no signal handler is active: Ctrl-C would kill the process although the
    command has succeeded. The JVM exits when this process has exited.
    """
    if "pyspark" not in sys.modules or not isinstance(exit_.code, int | None):
        raise exit_
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(exit_.code or 0)


def _replace_unencodable(stream: TextIO) -> None:
    """Print ? for characters of plans and tables that the encoding of a stream does not have."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


if __name__ == "__main__":
    main()
