"""Running processes, read from /proc."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def children_of(parent: int) -> list[int]:
    """Return the running children of a process."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent_pid = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent_pid) == parent and state != "Z":
                pids.append(int(stat.parent.name))
    return pids


def processes_of_session(leader: int) -> list[int]:
    """Return the running processes of a session."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                pids.append(int(stat.parent.name))
    return pids
