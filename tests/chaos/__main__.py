"""Start a broker and a database, kill systems at random, and compare the sinks with a batch.

python -m tests.chaos --kills 300 --seed 1
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.campaign import Campaign
from tests.real.kafka import Broker
from tests.real.postgres import Postgres


def run(campaign: Campaign, kills: int) -> bool:
    """Kill systems, run to the end, and print the differences; return whether there are none."""
    began = time.monotonic()
    for number, kind in enumerate(campaign.kinds(kills), 1):
        passed = time.monotonic() - began
        print(f"{number} ({passed:.0f} s): {campaign.kill(kind)}", flush=True)
    last = campaign.run_to_end()
    print(f"to the end: {last}")
    differences = campaign.differences()
    for name, difference in differences.items():
        print(
            f"{name}: {difference.rows:,} rows, {difference.missing} missing, {difference.unexpected} unexpected",
            flush=True,
        )
    for message in campaign.stops:
        print(f"exited and was restarted: {message}")
    killed = ", ".join(f"{kind} {count}" for kind, count in sorted(campaign.kills.items()))
    feed = campaign.feed
    print(
        f"{feed.ids:,} rows in, {feed.transactions} transactions of other producers ended, "
        f"{feed.aborted} were aborted"
    )
    print(f"{kills} kills ({killed}) in {time.monotonic() - began:.0f} s")
    return last == "done, 0 late rows" and all(
        difference.is_none for difference in differences.values()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-chaos-") as name:
        folder = Path(name)
        postgres = Postgres()
        (folder / "kafka").mkdir()
        broker = Broker(folder / "kafka")
        campaign: Campaign | None = None
        try:
            broker.start()
            campaign = Campaign(folder, broker, postgres, arguments.seed)
            return 0 if run(campaign, arguments.kills) else 1
        finally:
            if campaign is not None:
                campaign.end()
            broker.kill()
            postgres.close()


if __name__ == "__main__":
    sys.exit(main())
