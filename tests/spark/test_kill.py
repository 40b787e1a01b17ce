"""kill -9 of a running pipeline at random moments; `kill_campaign.py` does it fifty times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.kill_campaign import Campaign

pytestmark = pytest.mark.spark


def test_killed_at_random_moments_every_window_is_there_once(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, seed=20260101)
    for _ in range(3):
        campaign.run_and_kill()
    assert campaign.run_to_end() == "done, 0 late rows"
    assert campaign.differences() == {"files": (0, 0), "subscriber": (0, 0)}
    assert len(campaign.expected()) > 1_000
