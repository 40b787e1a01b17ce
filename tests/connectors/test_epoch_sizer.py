"""The adaptive size of epochs that catch up."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.pipelines import PipelineHarness
from tidegate.connectors.base import EpochSizer


@pytest.mark.parametrize(
    ("sizes", "count"), [([], 0), ([500], 1), ([40, 60], 2), ([40, 61], 1), ([1] * 300, 100)]
)
def test_fitting_returns_at_least_one_item(sizes: list[int], count: int) -> None:
    pace = EpochSizer()
    pace.bytes = 100
    assert pace.fitting(sizes) == count


def test_converges_to_the_target_duration() -> None:
    pace = EpochSizer(target_seconds=2.0)
    for _ in range(20):
        pace.learn(pace.bytes, seconds=0.5 + pace.bytes / 50e6)
    assert 0.5 + pace.bytes / 50e6 == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_balances_reading_with_a_fixed_cost_above_the_target(
    noise: float,
) -> None:
    """Smaller epochs would take as long and read less."""
    pace, dice = EpochSizer(target_seconds=1.0), random.Random(1)
    sizes = []
    for _ in range(60):
        sizes.append(pace.bytes)
        seconds = 3.0 + pace.bytes / 50e6
        pace.learn(pace.bytes, seconds * dice.uniform(1 - noise, 1 + noise))
    if not noise:
        assert sizes[-1] == pytest.approx(150e6, rel=0.1)
    assert min(sizes[10:]) > 20e6


def test_recovers_from_a_single_slow_epoch() -> None:
    pace = EpochSizer()
    for number in range(40):
        pace.learn(pace.bytes, seconds=5.0 if number == 20 else 0.2 + pace.bytes / 50e6)
    assert pace.bytes == pytest.approx(40e6, rel=0.1)


def test_changes_are_bounded_per_epoch_and_by_a_minimum() -> None:
    pace = EpochSizer()
    pace.learn(100 << 20, seconds=1_000)
    assert pace.bytes == 25 << 20
    for _ in range(50):
        pace.learn(pace.bytes, seconds=pace.bytes / 1_000)
    assert pace.bytes == 1 << 20


def test_reads_a_backlog_of_inserts_in_several_epochs(tmp_path: Path) -> None:
    harness = PipelineHarness(tmp_path, streams=1)
    source = harness.catalog.get("s")
    assert source is not None
    source.options._values["inserts_per_epoch"] = 1_000
    values = [random.Random(place).getrandbits(60) for place in range(8_000)]
    for _ in range(30):
        harness.inserts.append(pa.table({"a": pa.array(values, pa.int64())}))
    pipeline = harness.pipeline()
    pipeline.epoch_sizer.bytes = 200 << 10
    pipeline.start(harness.streams, until_end=True)
    assert pipeline._thread is not None
    pipeline._thread.join(60)
    assert max(harness.epochs()) > 1
    assert [a for a, _ in harness.rows("one0")] == sorted(values * 30)
