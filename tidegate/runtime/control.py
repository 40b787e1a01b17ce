"""The control stream of a pipeline: durable, read by Spark like any source, so a replay sees it."""

from __future__ import annotations

from pathlib import Path

from tidegate.operators.clock import END_US
from tidegate.runtime.record import write_json

_END = "end.json"


def end_input(directory: Path) -> None:
    """Say that no more rows come: the watermark of every source goes to the end of time."""
    directory.mkdir(parents=True, exist_ok=True)
    if not has_ended(directory):
        write_json(directory / _END, {"mark": END_US}, indent=None)


def has_ended(directory: Path) -> bool:
    """Whether this pipeline was run to its end before."""
    return (directory / _END).exists()
