"""The command line of the NEXMark benchmark: `python -m benchmarks.nexmark COMMAND`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tidegate.errors import TidegateError

app = typer.Typer(
    name="python -m benchmarks.nexmark",
    help="The NEXMark benchmark: run its queries, verify them, write its events, compare engines.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Queries = Annotated[
    list[str] | None,
    typer.Argument(metavar="[QUERY…]", help="Queries such as q5; all by default."),
]
Rows = Annotated[int, typer.Option("--rows", min=1, help="Number of events in all tables.")]
Folder = Annotated[
    Path | None,
    typer.Option("--events", metavar="DIR", help="Events that the command generate wrote."),
]
FlinkFolder = Annotated[
    Path | None,
    typer.Option(
        "--flink",
        metavar="DIR",
        help="Directory of `make nexmark-flink`; $TIDEGATE_FLINK or .flink by default.",
    ),
]


class SourceKind(StrEnum):
    """The source of the events."""

    GENERATOR = "generator"
    FILES = "files"
    KAFKA = "kafka"


class SinkKind(StrEnum):
    """The sink of the results."""

    BLACKHOLE = "blackhole"
    FILES = "files"
    MEMORY = "memory"


class EngineName(StrEnum):
    """An engine of the comparison."""

    TIDEGATE = "tidegate"
    FLINK = "flink"


@app.command()
def run(
    queries: Queries = None,
    rows: Rows = 1_000_000,
    source: Annotated[
        SourceKind,
        typer.Option("--source", help="Generate events, or read them from Parquet files or Kafka."),
    ] = SourceKind.GENERATOR,
    sink: Annotated[
        SinkKind, typer.Option("--sink", help="Sink of the results; q10 always writes files.")
    ] = SinkKind.BLACKHOLE,
    events: Folder = None,
    brokers: Annotated[
        str | None,
        typer.Option(
            "--brokers", metavar="HOST:PORT", help="Kafka brokers; the topics are temporary."
        ),
    ] = None,
) -> None:
    """Run queries to the end of their input; print throughput, epochs, state and rows.

    State is the maximum after an epoch. The first query includes Spark's warm-up.
    """
    from benchmarks.nexmark import run as runs

    workload = runs.Workload(runs.selected(queries), rows, events)
    raise typer.Exit(runs.run(workload, source.value, sink.value, brokers))


@app.command()
def verify(
    queries: Queries = None,
    rows: Rows = 100_000,
    events: Folder = None,
    flink: FlinkFolder = None,
) -> None:
    """Compare the results of queries with DuckDB's, and with Flink's if Flink is installed.

    Exit with 1 if any result differs or a query fails.
    """
    from benchmarks.nexmark import verify as verifying
    from benchmarks.nexmark.run import Workload, selected

    raise typer.Exit(verifying.verify(Workload(selected(queries), rows, events), flink))


@app.command()
def generate(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new or empty directory.")],
    rows: Rows = 1_000_000,
    files: Annotated[
        int | None,
        typer.Option("--files", min=1, help="Files per table; one per 250,000 events by default."),
    ] = None,
) -> None:
    """Write events as Parquet files: one directory each for person, auction and bid."""
    from benchmarks.nexmark.events import files_for, write_events
    from benchmarks.nexmark.run import show_progress, workspace

    with workspace() as (spark, _):
        show_progress("writing the events…")
        written = write_events(spark, rows, out, files or files_for(rows))
    show_progress("")
    for table, count in written.items():
        print(f"{count:>14,} rows in {out / table}")


@app.command()
def compare(
    queries: Annotated[
        list[str] | None,
        typer.Argument(metavar="[QUERY…]", help="Queries; all that both engines can run."),
    ] = None,
    rows: Rows = 5_000_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds after the warm-up.")] = 3,
    only: Annotated[
        EngineName | None, typer.Option("--only", help="Measure one engine only.")
    ] = None,
    events: Folder = None,
    flink: FlinkFolder = None,
) -> None:
    """Compare the throughput of Tidegate and Flink; print ratios and their geometric mean."""
    from benchmarks.nexmark import compare as comparing
    from benchmarks.nexmark.run import Workload, selected

    workload = Workload(selected(queries) if queries else (), rows, events)
    raise typer.Exit(comparing.compare(workload, rounds, only and only.value, flink))


def main() -> None:
    """Run the command line; print errors of Tidegate without a stack trace."""
    try:
        app()
    except TidegateError as error:
        sys.exit(error.render())


if __name__ == "__main__":
    main()
