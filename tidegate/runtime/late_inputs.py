"""Late rows that other streams read: how many there were, and who does not have all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tidegate.checkpoint.manifest import OperatorState
from tidegate.errors import RunError

if TYPE_CHECKING:
    from tidegate.runtime.members import Member

# Stands in manifests where sources have their connector.
LATE_ROWS = "late rows"


def late_rows_of(stream: str, operators: Iterable[OperatorState]) -> int:
    """How many rows came too late for a stream so far."""
    own = (o for o in operators if o.stream == stream)
    return sum(int(operator.report.get("late_rows") or 0) for operator in own)


def late_offsets(member: Member, operators: Iterable[OperatorState]) -> dict[str, Any]:
    """How far a member has read the late rows of others: it takes those of every epoch."""
    known = tuple(operators)
    return {
        name: {"rows": late_rows_of(parent, known)} for name, parent in member.late_inputs.items()
    }


def missed_late_rows(
    member: Member, offsets: Mapping[str, Any], operators: Iterable[OperatorState]
) -> list[RunError]:
    """What to say about a stream that was not there when rows came too late for another one."""
    found = []
    for name, now in late_offsets(member, operators).items():
        had = offsets.get(name, {"rows": 0})
        lacks = now["rows"] - had["rows"]
        if lacks > 0:
            parent = member.late_inputs[name]
            found.append(
                RunError(
                    "TG-612",
                    f"the stream {member.name} does not have {lacks:,} rows of {name}: they were "
                    "given out when it was not there, and what was given out is not computed again",
                    hint=f"to have all rows, give the streams {parent} and {member.name} other "
                    "names, or drop both and create them again.",
                )
            )
    return found
