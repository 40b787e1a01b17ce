"""Watermarks of operators: minimum over inputs and partitions, idle sources, and late rows."""

from __future__ import annotations

from tests.operators.harness import MINUTE, SECOND, Query, Row, harness_of
from tidegate.operators.aggregate.groups import WindowPanes
from tidegate.operators.watermark import (
    END_OF_INPUT_US,
    NO_WATERMARK_US,
    Origin,
    WatermarkTracker,
    WatermarkUpdate,
)

TUMBLE = Query(panes=WindowPanes("TUMBLE", 5, 5), keeps_late=True)


def test_watermark_is_the_largest_event_time_minus_the_delay() -> None:
    run = harness_of(TUMBLE)
    watermarks = [run.rows([Row(ts)], ts - 5).watermark for ts in (1000, 1005, 1002, 1010)]
    assert watermarks == [995, 1000, 1000, 1005]


def test_watermark_is_the_minimum_of_all_inputs() -> None:
    """Two sources of one port, and two ports."""
    for ports in (((Origin(0), Origin(1)),), ((Origin(0),), (Origin(1),))):
        tracker = WatermarkTracker(ports)
        tracker.advance([WatermarkUpdate(0, 0, 1000)], None)
        assert tracker.watermark_us is None, "the other source has not had a row"
        tracker.advance([WatermarkUpdate(1, 0, 800)], None)
        assert tracker.watermark_us == 800
        tracker.advance([WatermarkUpdate(1, 0, 900)], None)
        assert tracker.watermark_us == 900


def test_watermark_of_a_source_is_the_minimum_of_its_partitions() -> None:
    tracker = WatermarkTracker(((Origin(0),),))
    tracker.advance([WatermarkUpdate(0, 0, 1000), WatermarkUpdate(0, 1, 800)], None)
    assert tracker.watermark_us == 800
    tracker.advance([WatermarkUpdate(0, 1, 1200)], None)
    assert tracker.watermark_us == 1000


def test_idle_source_is_ignored_until_its_next_row() -> None:
    tracker = WatermarkTracker(((Origin(0, 10 * SECOND), Origin(1, 10 * SECOND)),))
    tracker.advance([WatermarkUpdate(0, 0, 100), WatermarkUpdate(1, 0, 50)], 0)
    assert tracker.watermark_us == 50
    tracker.advance([WatermarkUpdate(0, 0, 200)], 10 * SECOND)
    assert tracker.watermark_us == 50, "the timeout must be exceeded"
    tracker.advance([WatermarkUpdate(0, 0, 300)], 30 * SECOND)
    assert (tracker.watermark_us, tracker.idle) == (300, False)
    tracker.advance([WatermarkUpdate(0, 0, 400), WatermarkUpdate(1, 0, 310)], 31 * SECOND)
    assert tracker.watermark_us == 310


def test_watermark_never_goes_back() -> None:
    tracker = WatermarkTracker(((Origin(0, SECOND), Origin(1, SECOND)),))
    tracker.advance([WatermarkUpdate(0, 0, 100), WatermarkUpdate(1, 0, 50)], 0)
    tracker.advance([WatermarkUpdate(0, 0, 100)], 5 * SECOND)
    assert tracker.watermark_us == 100
    tracker.advance([WatermarkUpdate(1, 0, 60), WatermarkUpdate(0, 0, 90)], 6 * SECOND)
    assert tracker.watermark_us == 100


def test_watermark_does_not_advance_if_all_sources_are_idle() -> None:
    tracker = WatermarkTracker(((Origin(0, SECOND),),))
    tracker.advance([WatermarkUpdate(0, 0, 100)], 0)
    tracker.advance([], 5 * SECOND)
    assert (tracker.watermark_us, tracker.idle) == (100, True)
    tracker.advance([WatermarkUpdate(0, 0, 120)], 6 * SECOND)
    assert (tracker.watermark_us, tracker.idle) == (120, False)


def test_source_without_rows_is_idle_after_its_timeout() -> None:
    tracker = WatermarkTracker(((Origin(0), Origin(1, 10 * SECOND)),))
    tracker.advance([WatermarkUpdate(0, 0, 100)], 0)
    assert tracker.watermark_us is None
    tracker.advance([], 11 * SECOND)
    assert tracker.watermark_us == 100


def test_watermarks_survive_a_restart() -> None:
    ports = ((Origin(0, 10 * SECOND), Origin(1)),)
    tracker = WatermarkTracker(ports)
    tracker.advance(
        [
            WatermarkUpdate(0, 0, 100),
            WatermarkUpdate(0, 1, 70, idle=True),
            WatermarkUpdate(1, 0, 50),
        ],
        5,
    )
    assert WatermarkTracker.from_bytes(ports, tracker.to_bytes()) == tracker


def test_rows_are_not_late_by_the_watermark_of_their_own_epoch() -> None:
    run = harness_of(TUMBLE)
    epoch = run.rows([Row(1000), Row(3), Row(1)], 1000)
    assert sorted(epoch.rows) == [(0, 5, 2)]
    assert (epoch.late, epoch.late_rows) == ([], 0)
    after = run.rows([Row(2), Row(1001)], 1000)
    assert ([row["l1"] for row in after.late], after.late_rows, after.rows) == ([2], 1, [])


def test_emitted_update_does_not_go_back() -> None:
    run = harness_of(TUMBLE)
    assert run.rows([Row(7)]).update is None
    assert [run.rows([], mark).update for mark in (10, 8)] == [WatermarkUpdate(1, 0, 10)] * 2
    assert [report["watermark_us"] for report in run.epochs[-1].reports] == [10, 10]


def test_watermark_advances_in_key_groups_without_rows() -> None:
    run = harness_of(Query(panes=WindowPanes("TUMBLE", 5, 5)), key_groups=4)
    run.rows([Row(1)], 0)
    assert {report["watermark_us"] for report in run.rows([], 5).reports} == {5}
    assert run.epochs[-1].rows == [(0, 5, 1)]


def test_end_of_input_closes_all_windows() -> None:
    run = harness_of(Query(panes=WindowPanes("TUMBLE", 60 * MINUTE, 60 * MINUTE)))
    assert run.rows([Row(1), Row(-1)], 0).rows == [(-60 * MINUTE, 0, 1)]
    last = run.end()
    assert (last.watermark, last.rows, run.stored_names()) == (
        END_OF_INPUT_US,
        [(0, 60 * MINUTE, 1)],
        [],
    )


def test_partition_without_rows_holds_the_watermark_until_it_is_idle() -> None:
    tracker = WatermarkTracker(((Origin(0, 10 * SECOND),),))
    announced = [WatermarkUpdate(0, number, NO_WATERMARK_US) for number in (0, 1)]
    tracker.advance([*announced, WatermarkUpdate(0, 0, 100)], 0)
    assert tracker.watermark_us is None
    assert tracker.next_idle_us() == 10 * SECOND + 1
    tracker = WatermarkTracker.from_bytes(tracker.ports, tracker.to_bytes())
    tracker.advance([*announced, WatermarkUpdate(0, 0, 200)], 9 * SECOND)
    assert tracker.watermark_us is None, "announcing a partition again is not a row"
    tracker.advance([*announced, WatermarkUpdate(0, 0, 300)], 11 * SECOND)
    assert tracker.watermark_us == 300
    tracker.advance(
        [*announced, WatermarkUpdate(0, 2, NO_WATERMARK_US), WatermarkUpdate(0, 0, 400)],
        12 * SECOND,
    )
    assert tracker.watermark_us == 300, "a new partition holds the watermark back"
    tracker.advance([WatermarkUpdate(0, 1, 350), WatermarkUpdate(0, 2, 340)], 13 * SECOND)
    assert tracker.watermark_us == 340


def test_source_ends_with_all_its_partitions() -> None:
    tracker = WatermarkTracker(((Origin(0), Origin(1)),))
    tracker.advance(
        [
            WatermarkUpdate(0, 0, 10),
            WatermarkUpdate(0, 1, NO_WATERMARK_US),
            WatermarkUpdate(1, 0, 20),
        ],
        None,
    )
    tracker.advance([WatermarkUpdate(0, 0, END_OF_INPUT_US)], None)
    assert tracker.watermark_us == 20
    tracker.advance([WatermarkUpdate(1, 0, END_OF_INPUT_US)], None)
    assert tracker.watermark_us == END_OF_INPUT_US


def test_late_epoch_computes_the_same_watermark_as_many_epochs() -> None:
    """The partitions become idle one after the other, also if no epoch runs in between."""

    def new_tracker() -> WatermarkTracker:
        tracker = WatermarkTracker(((Origin(0, SECOND),),))
        tracker.advance([WatermarkUpdate(0, 0, 40)], 0)
        tracker.advance([WatermarkUpdate(0, 1, 30)], SECOND // 2)
        tracker.advance([WatermarkUpdate(0, 2, 60)], SECOND)
        return tracker

    often, once = new_tracker(), new_tracker()
    for tenths in range(11, 31):
        often.advance([], tenths * SECOND // 10)
    once.advance([], 3 * SECOND)
    assert (often.watermark_us, once.watermark_us) == (60, 60)
    assert often.idle and once.idle
    waiting = new_tracker()
    waiting.advance([WatermarkUpdate(0, 0, 45)], 3 * SECOND)
    assert waiting.watermark_us == 45, "rows that waited for the epoch are on time"


def test_idle_origin_advances_the_watermark_before_it_is_ignored() -> None:
    tracker = WatermarkTracker(((Origin(0),), (Origin(1),)))
    tracker.advance([WatermarkUpdate(0, 0, 10), WatermarkUpdate(1, 0, 10)], 0)
    tracker.advance([WatermarkUpdate(0, 0, 50, True), WatermarkUpdate(1, 0, 40, True)], SECOND)
    assert (tracker.watermark_us, tracker.idle) == (40, True)
