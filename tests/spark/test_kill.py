"""kill -9 of a pipeline of six streams, at every step of an epoch and at random moments.

`kill_campaign.py` runs more kills at random moments.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.kill_campaign import Campaign
from tidegate.runtime.pipeline import EpochStep

pytestmark = pytest.mark.spark


def test_kill_at_every_step_keeps_every_row_once(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, seed=7)
    for number, step in enumerate(EpochStep):
        for _ in range(2):
            campaign.add_file()
        # Sinks are committed one by one, so kill between different pairs of them.
        times = 2 + 3 * number if step is EpochStep.PUBLISHING else 1 + number % 2
        assert campaign.run_until_killed(step.value, times) == -9, (
            f"{step}: the pipeline was not killed"
        )
    campaign.add_file()
    assert campaign.run_to_end() == "done, 0 late rows"
    assert campaign.differences() == {}
    assert {name: len(rows) > 20 for name, rows in campaign.expected().items()} == dict.fromkeys(
        campaign.expected(), True
    )


def test_kill_at_random_moments_keeps_every_row_once(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, seed=20260101)
    for _ in range(3):
        campaign.run_and_kill()
    assert campaign.run_to_end() == "done, 0 late rows"
    assert campaign.differences() == {}
