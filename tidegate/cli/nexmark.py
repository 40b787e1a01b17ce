"""`tidegate nexmark`: run the queries of the benchmark, verify them, write its events."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.guard import guarded

app = typer.Typer(
    help="The NEXMark benchmark: run its queries, verify them, write its events.",
    no_args_is_help=True,
)

Queries = Annotated[
    list[str] | None,
    typer.Argument(metavar="[QUERY…]", help="Queries such as q5; all by default."),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--events", metavar="DIR", help="Events that `tidegate nexmark generate` has written."
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show stack traces.")]


class SourceKind(StrEnum):
    """Where events come from."""

    GENERATOR = "generator"
    FILES = "files"
    KAFKA = "kafka"


class SinkKind(StrEnum):
    """Where results go."""

    BLACKHOLE = "blackhole"
    FILES = "files"
    MEMORY = "memory"


@app.command()
@guarded
def run(
    queries: Queries = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Events of all tables.")] = 1_000_000,
    source: Annotated[
        SourceKind,
        typer.Option("--source", help="Made on the fly, or read from parquet files or Kafka."),
    ] = SourceKind.GENERATOR,
    sink: Annotated[
        SinkKind, typer.Option("--sink", help="Where results go; those of q10 go to files.")
    ] = SinkKind.BLACKHOLE,
    events: Folder = None,
    brokers: Annotated[
        str | None,
        typer.Option(
            "--brokers", metavar="HOST:PORT", help="Of Kafka; topics are made, and deleted again."
        ),
    ] = None,
    debug: Debug = False,
) -> int:
    """Run queries to their end: events per second, epochs, state and rows.

    State is the most that was kept after an epoch. The first query also warms Spark up.
    """
    from tidegate.nexmark import commands

    wanted = commands.Wanted(commands.known(queries), rows, events)
    return commands.run(wanted, source.value, sink.value, brokers)


@app.command()
@guarded
def verify(
    queries: Queries = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Events of all tables.")] = 100_000,
    events: Folder = None,
    flink: Annotated[
        Path | None,
        typer.Option(
            "--flink", metavar="DIR", help="What `make nexmark-flink` made; .flink if it is there."
        ),
    ] = None,
    debug: Debug = False,
) -> int:
    """Compare the result of queries with DuckDB's over the same events, and with Flink's.

    Exits with 1 if any result differs or a query fails.
    """
    from tidegate.nexmark import commands

    return commands.verify(commands.Wanted(commands.known(queries), rows, events), flink)


@app.command()
@guarded
def generate(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A directory, new or empty.")],
    rows: Annotated[int, typer.Option("--rows", min=1, help="Events of all tables.")] = 1_000_000,
    files: Annotated[
        int | None, typer.Option("--files", min=1, help="Files of each table; by rows if left out.")
    ] = None,
    debug: Debug = False,
) -> int:
    """Write the events as parquet files: a folder each for person, auction and bid."""
    from tidegate.nexmark import commands

    return commands.generate(out, rows, files)
