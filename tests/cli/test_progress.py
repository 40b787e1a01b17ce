"""What streams are doing, in words, while `tidegate run` waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.cli.text import notes
from tidegate.observe.status import OperatorStatus, State, StreamStatus

RUNNING = StreamStatus("dear", State.RUNNING, 0, 10, 2, 5.0, 1.0)
WINDOWED = replace(
    RUNNING, rows_in_per_second=0.0, operators=(OperatorStatus("w", open_windows=3),)
)


@pytest.mark.parametrize(
    ("statuses", "ends", "lines"),
    [
        ([RUNNING], False, []),
        ([replace(RUNNING, epoch=None)], False, ["waiting for the first rows"]),
        (
            [replace(RUNNING, epoch=None, working_seconds=7.9)],
            False,
            ["working on the first epoch, which takes longest: 7 s"],
        ),
        ([replace(WINDOWED, working_seconds=61.0)], False, ["working on an epoch: 61 s"]),
        (
            [RUNNING, replace(WINDOWED, name="w")],
            False,
            [
                "w: waiting for rows; 3 windows open; what is open at the end closes with --until-end"
            ],
        ),
        ([WINDOWED], True, ["waiting for rows; 3 windows open"]),
        ([replace(RUNNING, error="the sink out: disk full")], False, ["the sink out: disk full"]),
        ([replace(RUNNING, state=State.FAILED, error="oh")], False, ["oh"]),
        ([replace(RUNNING, state=State.FINISHED, rows_in_per_second=0.0)], True, []),
    ],
)
def test_what_streams_are_doing(statuses: list[StreamStatus], ends: bool, lines: list[str]) -> None:
    assert notes(statuses, ends) == lines
