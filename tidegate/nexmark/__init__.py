"""NEXMark: the queries q0 to q22 in our dialect, and the same questions in SQL of other engines.

`query("q5")` is a whole script: its sources are generators without end. `batch("q5")` is the same
question in DuckDB's SQL, `flink("q5")` in Flink's; each is written on its own, so that they can
be held against each other. `scripts` puts other sources below a query, `events` writes the events
as files, `running` measures, `verifying` compares; `flink_home` finds Flink, and `flink_program` is
what runs there. This module loads nothing but the package's own files.
"""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable

_HERE = resources.files("tidegate.nexmark")


def names() -> list[str]:
    """The queries there are, in order."""
    return _names("queries")


def query(name: str) -> str:
    """The script of a query: its sources and one stream of the same name."""
    return _text("queries", name)


def batch(name: str) -> str:
    """The same question for DuckDB, over tables of the same names."""
    return _text("batch", name)


def flink_names() -> list[str]:
    """The queries that Flink can be asked."""
    return _names("flink")


def flink(name: str) -> str:
    """The same question for Flink: one SELECT over tables of the same names."""
    return _text("flink", name)


def _names(folder: str) -> list[str]:
    found = [entry.name.removesuffix(".sql") for entry in (_HERE / folder).iterdir()]
    return sorted((name for name in found if name.startswith("q")), key=lambda name: int(name[1:]))


def _text(folder: str, name: str) -> str:
    known = _names(folder)
    if name not in known:
        raise KeyError(f"there is no query {name}; there are {', '.join(known)}")
    file: Traversable = _HERE / folder / f"{name}.sql"
    return file.read_text("utf-8")
