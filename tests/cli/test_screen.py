"""Screens, and the status of streams as text."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from io import StringIO

import pyarrow as pa
import pytest
from rich.console import Console

from tidegate.cli import live, screen
from tidegate.cli.screen import describe_activities
from tidegate.observe.status import OperatorStatus, State, StreamStatus

RUNNING = StreamStatus("dear", State.RUNNING, 0, 10, 2, 5.0, 1.0)
WINDOWED = replace(
    RUNNING, rows_in_per_second=0.0, operators=(OperatorStatus("w", open_windows=3),)
)


@pytest.mark.parametrize(
    ("statuses", "is_bounded", "lines"),
    [
        ([RUNNING], False, []),
        ([replace(RUNNING, epoch=None)], False, ["waiting for the first rows"]),
        (
            [replace(RUNNING, epoch=None, running_seconds=7.9)],
            False,
            ["running the first epoch, which takes longest: 7 s"],
        ),
        ([replace(WINDOWED, running_seconds=61.0)], False, ["running an epoch: 61 s"]),
        (
            [RUNNING, replace(WINDOWED, name="w")],
            False,
            ["w: waiting for rows; 3 open windows; --until-end closes open windows"],
        ),
        ([WINDOWED], True, ["waiting for rows; 3 open windows"]),
        ([replace(RUNNING, error="the sink out: disk full")], False, ["the sink out: disk full"]),
        ([replace(RUNNING, state=State.FAILED, error="oh")], False, ["oh"]),
        ([replace(RUNNING, state=State.FINISHED, rows_in_per_second=0.0)], True, []),
    ],
)
def test_describe_activities(
    statuses: list[StreamStatus], is_bounded: bool, lines: list[str]
) -> None:
    assert describe_activities(statuses, is_bounded) == lines


class TestPlainScreen:
    def test_prints_at_most_one_line_per_second(self, capsys: pytest.CaptureFixture[str]) -> None:
        now = [0.0]
        printer = screen.PlainScreen(clock=lambda: now[0])
        for tenth in range(30):
            now[0] = tenth / 10
            printer.show_progress([StreamStatus("s", State.RUNNING, tenth)])
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[3] for line in lines] == ["0,", "10,", "20,"]

    def test_prints_no_line_without_new_epoch(self, capsys: pytest.CaptureFixture[str]) -> None:
        now = [0.0]
        printer = screen.PlainScreen(clock=lambda: now[0])
        for second, epoch in enumerate([None, 0, 0, 0, 1]):
            now[0] = float(second)
            printer.show_progress([StreamStatus("s", State.RUNNING, epoch)])
        assert len(capsys.readouterr().out.splitlines()) == 2

    def test_progress_of_the_input(self) -> None:
        assert "62 % of the input read" in screen.progress_line(replace(RUNNING, progress=0.62))
        assert "input" not in screen.progress_line(replace(RUNNING, progress=1.0))

    def test_summary_with_all_counters(self) -> None:
        status = StreamStatus(
            "s", State.STOPPED, 3, 1, 2, 0, 0, datetime(2024, 1, 1), 61.0, 1, 2, 3_000
        )
        assert screen.summary_line(status) == (
            "s: stopped, epoch 3, 1 row in, 2 rows out, watermark 2024-01-01 00:00:00 "
            "(1 min 1 s behind), 1 late row, 2 dead letters, state 3.0 kB"
        )


class TestLiveScreen:
    def open(self, width: int) -> tuple[live.LiveScreen, StringIO]:
        output = StringIO()
        console = Console(file=output, width=width, force_terminal=True, color_system=None)
        return live.LiveScreen(console), output

    def test_rows_scroll_above_the_status_table(self) -> None:
        terminal, output = self.open(100)
        terminal.show_progress([RUNNING])
        terminal.print_rows("dear", 0, pa.table({"price": [11], "word": ["[bold]\x1b[2J"]}))
        terminal.print_final_status([StreamStatus("dear", State.FINISHED, 7)])
        text = output.getvalue()
        assert "dear · epoch 0" in text and "[bold]\\x1b[2J" in text
        assert text.rindex("finished") > text.index("epoch 0")

    def test_narrow_terminal_drops_columns(self) -> None:
        terminal, output = self.open(60)
        terminal.print_final_status([RUNNING])
        header = next(line for line in output.getvalue().splitlines() if "stream" in line)
        assert header.split("  ")[0].strip() == "stream"
        assert "rows/s" in header and "dead letters" not in header

    def test_full_table_fits_80_columns(self) -> None:
        terminal, output = self.open(80)
        terminal.is_bounded = True
        full = replace(RUNNING, progress=1.0, late_rows=16, dead_letters=59, state_bytes=74_800)
        terminal.print_final_status(
            [replace(full, name="sessions", rows_in=3_138, epoch_seconds=80.0)]
        )
        assert "…" not in output.getvalue()
        for column in ("rows in", "rows out", "late", "dead letters"):
            assert column in output.getvalue()

    def test_wide_terminal_shows_all_columns(self) -> None:
        terminal, output = self.open(140)
        terminal.print_final_status([RUNNING])
        for column in ("rows out", "watermark", "lag", "late", "dead letters", "state size"):
            assert column in output.getvalue()

    def test_bounded_input_has_a_progress_bar(self) -> None:
        terminal, output = self.open(140)
        terminal.print_final_status([replace(RUNNING, progress=0.999)])
        assert "input" not in output.getvalue(), "the input is unbounded"
        terminal.is_bounded = True
        terminal.print_final_status([replace(RUNNING, progress=0.999)])
        assert "input" in output.getvalue() and "█████████░  99 %" in output.getvalue()

    def test_activity_is_below_the_table(self) -> None:
        terminal, output = self.open(100)
        terminal.print_final_status([replace(RUNNING, rows_in_per_second=0.0)])
        assert output.getvalue().rstrip().endswith("waiting for rows")
