"""Write clicks, orders and customers for shop.sql, or continuously for live.sql.

python rows.py [--minutes 20] [--every 5]    one file per minute of event time
python rows.py --live [500]                  500 clicks per second, now, until Ctrl-C
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

PAGES = ["/", "/shoes", "/hats", "/cart", "/checkout"]
SYSTEMS = ["android", "ios", "linux", "windows"]
COUNTRIES = ["DE", "FR", "IT", "PL", "SE"]
START = datetime(2026, 3, 1, 10)
HERE = Path(__file__).parent


def clicks(dice: random.Random, minute: int, count: int) -> Iterator[str]:
    """Yield the lines of a minute: out of order, some twice, some a day late, some malformed."""
    for number in range(count):
        at = START + timedelta(minutes=minute, seconds=dice.uniform(-60, 60))
        if minute > 5 and dice.random() < 0.01:
            at -= timedelta(days=1)
        click = {
            "id": minute * count + number,
            "user_id": dice.randrange(20) if dice.random() < 0.98 else None,
            "page": dice.choice(PAGES),
            "device": {"os": dice.choice(SYSTEMS)},
            "ts": at.isoformat(),
        }
        line = json.dumps(click)
        yield line[: len(line) // 2] if dice.random() < 0.01 else line
        if dice.random() < 0.05:
            yield line


def orders(dice: random.Random, minute: int, count: int) -> Iterator[str]:
    yield "id,user_id,amount,ts"
    for number in range(count):
        at = START + timedelta(minutes=minute, seconds=dice.uniform(-60, 60))
        yield f"{minute * count + number},{dice.randrange(25)},{amount(dice):.2f},{at.isoformat()}"


def amount(dice: random.Random) -> float:
    return dice.choice([5, 10, 20, 80]) + dice.random()


def write(folder: Path, name: str, lines: Iterable[str]) -> None:
    """Write a file under a temporary name and rename it, so that no reader sees a part of it."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{name}"
    temporary.write_text("\n".join(lines) + "\n")
    temporary.rename(folder / name)


def write_minute(folder: Path, minute: int, per_minute: int) -> None:
    dice = random.Random(minute)
    write(folder / "clicks", f"{minute:05d}.json", clicks(dice, minute, per_minute))
    write(folder / "orders", f"{minute:05d}.csv", orders(dice, minute, per_minute // 10))


def write_customers(folder: Path, count: int, countries: list[str]) -> None:
    rows = (f"{n},customer {n},{countries[n % len(countries)]}" for n in range(count))
    write(folder / "customers", "customers.csv", ["id,name,country", *rows])


class LiveShop:
    """Visitors who click now. One in ten who reach the checkout orders within half a minute."""

    USERS = 2000

    def __init__(self, folder: Path, clicks_per_second: int, seed: int | None = None) -> None:
        self.folder = folder
        self.clicks_per_second = clicks_per_second
        self.dice = random.Random(seed)
        self.next_id = 0
        # When an order will be placed, and by whom.
        self.pending: deque[tuple[datetime, int]] = deque()

    def run(self) -> None:
        write_customers(self.folder, self.USERS, COUNTRIES)
        while True:
            started = time.monotonic()
            self.write_second(datetime.now(UTC).replace(tzinfo=None))
            time.sleep(max(0.0, 1 - (time.monotonic() - started)))

    def write_second(self, now: datetime) -> None:
        """Write the clicks and orders that arrive in one second."""
        name = now.strftime("%Y%m%d-%H%M%S-%f")
        # Traffic varies by a tenth.
        count = max(1, round(self.dice.gauss(self.clicks_per_second, self.clicks_per_second / 10)))
        write(self.folder / "clicks", f"{name}.json", [self.click(now) for _ in range(count)])
        orders = [self.order(at, user) for at, user in self.due(now)]
        if orders:
            write(self.folder / "orders", f"{name}.csv", ["id,user_id,amount,ts", *orders])

    def click(self, now: datetime) -> str:
        """Return a line. One in 200 clicks was made offline, one line in 500 is malformed."""
        dice = self.dice
        delay = dice.uniform(60, 600) if dice.random() < 0.005 else dice.uniform(0, 3)
        page, user = dice.choice(PAGES), dice.randrange(self.USERS)
        at = now - timedelta(seconds=delay)
        if page == "/checkout" and dice.random() < 0.1:
            self.pending.append((now + timedelta(seconds=dice.uniform(1, 30)), user))
        device = {"os": dice.choice(SYSTEMS)}
        click = {"id": self.id(), "user_id": user, "page": page, "device": device}
        line = json.dumps({**click, "ts": at.isoformat()})
        return line[: len(line) // 2] if dice.random() < 0.002 else line

    def due(self, now: datetime) -> list[tuple[datetime, int]]:
        """Remove and return the orders that have been placed by now."""
        due = [order for order in self.pending if order[0] <= now]
        self.pending = deque(order for order in self.pending if order[0] > now)
        return due

    def order(self, at: datetime, user: int) -> str:
        return f"{self.id()},{user},{amount(self.dice):.2f},{at.isoformat()}"

    def id(self) -> int:
        self.next_id += 1
        return self.next_id


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="by default in/, or live/ with --live")
    parser.add_argument("--minutes", type=int, default=20, help="minutes of rows to write")
    parser.add_argument("--every", type=float, default=0.0, help="seconds between two minutes")
    parser.add_argument("--clicks", type=int, default=200, help="clicks in a minute")
    parser.add_argument("--live", type=int, nargs="?", const=500, help="clicks per second")
    options = parser.parse_args()
    if options.live is not None:
        folder = options.folder or HERE / "live"
        print(f"writing {options.live} clicks per second to {folder}; Ctrl-C stops", flush=True)
        try:
            LiveShop(folder, options.live).run()
        except KeyboardInterrupt:
            return
    folder = options.folder or HERE / "in"
    write_customers(folder, 20, ["FR", "DE"])
    first = len(list((folder / "clicks").glob("*.json")))
    for minute in range(first, first + options.minutes):
        write_minute(folder, minute, options.clicks)
        time.sleep(options.every)
    print(f"{options.minutes} minutes of clicks and orders are in {folder}")


if __name__ == "__main__":
    main()
