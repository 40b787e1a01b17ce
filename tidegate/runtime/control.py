"""The control stream of a pipeline: durable, read by Spark like any source, so a replay sees it.

It says two things: that the input has ended, and, where something depends on the clock, that time
goes on while no rows come.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegate.operators.clock import END_US
from tidegate.runtime.record import write_json

FOLDER = "_control"
_END = "end.json"
_beats = itertools.count()


def end_input(directory: Path) -> None:
    """Say that no more rows come: the watermark of every source goes to the end of time."""
    directory.mkdir(parents=True, exist_ok=True)
    if not has_ended(directory):
        write_json(directory / _END, {"mark": END_US}, indent=None)


def has_ended(directory: Path) -> bool:
    """Whether this pipeline was run to its end before."""
    return (directory / _END).exists()


def beat(directory: Path) -> None:
    """Ask for an epoch without rows, and forget the beats that are long over."""
    directory.mkdir(parents=True, exist_ok=True)
    name = f"beat-{time.time_ns():020d}-{next(_beats):08d}.json"
    write_json(directory / name, {"mark": None}, indent=None)
    for old in sorted(directory.glob("beat-*.json"))[:-100]:
        old.unlink(missing_ok=True)


def is_control(source: Mapping[str, Any], directory: Path) -> bool:
    """Whether an entry of a progress report is this control stream and no input."""
    return source.get("description") == f"FileStreamSource[file:{directory.absolute()}]"
