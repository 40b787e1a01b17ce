"""A small run of `tests.chaos`: `python -m tests.chaos --kills 300` is the large one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.campaign import Campaign
from tests.real.kafka import Broker
from tests.real.postgres import Postgres

pytestmark = pytest.mark.spark


def test_whatever_is_killed_every_sink_has_every_row_once(
    tmp_path: Path, broker: Broker, postgres: Postgres
) -> None:
    campaign = Campaign(tmp_path, broker, postgres, seed=1)
    try:
        # Starting Spark takes longest: only the last of them needs another one.
        for kind in ("worker", "broker", "database", "pipeline"):
            campaign.kill(kind)
        assert campaign.run_to_end() == "done, 0 late rows"
        differences = campaign.differences()
        assert {name: found for name, found in differences.items() if not found.is_none} == {}
        assert all(found.rows for found in differences.values()), "there is something to compare"
    finally:
        campaign.end()
