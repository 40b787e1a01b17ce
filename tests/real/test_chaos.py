"""A small run of `tests.chaos`; `python -m tests.chaos --kills 300` is the large one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.campaign import Campaign
from tests.real.kafka import Broker
from tests.real.postgres import Postgres

pytestmark = pytest.mark.spark


def test_kills_of_all_systems_keep_every_row_once_in_every_sink(
    tmp_path: Path, broker: Broker, postgres: Postgres
) -> None:
    campaign = Campaign(tmp_path, broker, postgres, seed=1)
    try:
        # The pipeline is killed last, because starting Spark takes longest.
        for kind in ("worker", "broker", "database", "pipeline"):
            campaign.kill(kind)
        assert campaign.run_to_end() == "done, 0 late rows"
        differences = campaign.differences()
        assert {
            name: difference for name, difference in differences.items() if not difference.is_none
        } == {}
        assert all(difference.rows for difference in differences.values()), "a sink has no rows"
    finally:
        campaign.end()
