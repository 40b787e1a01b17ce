"""How much an epoch reads while it catches up."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tests.pipelines import House
from tidegate.connectors.pace import Pace


@pytest.mark.parametrize(
    ("sizes", "taken"), [([], 0), ([500], 1), ([40, 60], 2), ([40, 61], 1), ([1] * 300, 100)]
)
def test_as_many_as_fit_and_one_at_least(sizes: list[int], taken: int) -> None:
    pace = Pace()
    pace.bytes = 100
    assert pace.fitting(sizes) == taken


def test_epochs_come_to_take_the_time_they_should() -> None:
    pace = Pace(target_seconds=2.0)
    for _ in range(20):
        pace.learn(pace.bytes, seconds=0.5 + pace.bytes / 50e6)
    assert 0.5 + pace.bytes / 50e6 == pytest.approx(2.0, rel=0.05)


def test_one_epoch_changes_only_so_much_and_there_is_a_least() -> None:
    pace = Pace()
    pace.learn(100 << 20, seconds=1_000)
    assert pace.bytes == 25 << 20
    for _ in range(50):
        pace.learn(pace.bytes, seconds=1_000)
    assert pace.bytes == 1 << 20


def test_a_backlog_of_inserts_is_read_in_several_epochs(tmp_path: Path) -> None:
    house = House(tmp_path, streams=1)
    source = house.catalog.get("s")
    assert source is not None
    source.options._values["inserts_per_epoch"] = 1_000
    values = [random.Random(place).getrandbits(60) for place in range(8_000)]
    for _ in range(30):
        house.inserts.append(pa.table({"a": pa.array(values, pa.int64())}))
    pipeline = house.pipeline()
    pipeline.pace.bytes = 200 << 10
    pipeline.start(house.members, until_end=True)
    assert pipeline._thread is not None
    pipeline._thread.join(60)
    assert max(house.epochs()) > 1
    assert [a for a, _ in house.rows("one0")] == sorted(values * 30)
