"""Writes clicks, orders and customers for shop.sql: python rows.py [--minutes 20] [--every 5]"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

PAGES = ["/", "/shoes", "/hats", "/cart", "/checkout"]
SYSTEMS = ["android", "ios", "linux", "windows"]
START = datetime(2026, 3, 1, 10)


def clicks(dice: random.Random, minute: int, count: int) -> Iterator[str]:
    """The lines of a minute: out of order, some twice, some a day late, some unreadable."""
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
        amount = dice.choice([5, 10, 20, 80]) + dice.random()
        yield f"{minute * count + number},{dice.randrange(25)},{amount:.2f},{at.isoformat()}"


def write(folder: Path, name: str, lines: Iterator[str]) -> None:
    """A file is there as a whole or not at all: nobody reads half of it."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{name}"
    aside.write_text("\n".join(lines) + "\n")
    aside.rename(folder / name)


def write_minute(folder: Path, minute: int, per_minute: int) -> None:
    dice = random.Random(minute)
    write(folder / "clicks", f"{minute:05d}.json", clicks(dice, minute, per_minute))
    write(folder / "orders", f"{minute:05d}.csv", orders(dice, minute, per_minute // 10))


def write_customers(folder: Path) -> None:
    people = (f"{number},customer {number},{'DE' if number % 2 else 'FR'}" for number in range(20))
    write(folder / "customers", "customers.csv", iter(["id,name,country", *people]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent / "in")
    parser.add_argument("--minutes", type=int, default=20, help="minutes of rows to write")
    parser.add_argument("--every", type=float, default=0.0, help="seconds between two minutes")
    parser.add_argument("--clicks", type=int, default=200, help="clicks in a minute")
    options = parser.parse_args()
    write_customers(options.folder)
    written = list((options.folder / "clicks").glob("*.json"))
    for minute in range(len(written), len(written) + options.minutes):
        write_minute(options.folder, minute, options.clicks)
        time.sleep(options.every)
    print(f"{options.minutes} minutes of clicks and orders are in {options.folder}")


if __name__ == "__main__":
    main()
