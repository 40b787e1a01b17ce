"""Mutate SQL and run what `check` accepts on Spark. The result must be rows or an error with a code.

python -m tests.spark.fuzz_execution --mutations 500 --seed 1
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import tidegate
from tests.sql.fuzz_statements import TOKEN, corpus, replace_by_alternative, wrap
from tests.support.compiling import compile_text
from tidegate.catalog.objects import SideStream, Sink, Source, Stream
from tidegate.compile.compiler import Compiled
from tidegate.errors import TidegateError
from tidegate.spark.errors import UNEXPLAINED_HINT
from tidegate.sql import statements as st

# Texts of errors of Spark, Java or Python that Tidegate did not translate.
RAW = re.compile(
    r"Traceback|org\.apache|java\.|Exception\b|SQLSTATE|\[[A-Z]+_[A-Z_.]+\]|_tg_|#\d+|"
    r"(?:Key|Type|Value|Attribute|Index|Arrow\w*|Assertion)Error"
)
START = datetime(2026, 1, 1, 9, tzinfo=UTC)


@dataclass(frozen=True)
class Finding:
    """An error that does not explain the cause, and the script that led to it."""

    kind: str
    text: str
    error: str


def candidates(dice: random.Random) -> Iterator[str]:
    """Generate scripts that `check` accepts, each with a word or two changed, over memory sources."""
    scripts = corpus(None)
    while True:
        streams = single_streams(dice.choice(scripts))
        if not streams:
            continue
        tokens = TOKEN.findall(dice.choice(streams))
        for _ in range(dice.choice([1, 1, 2, 3])):
            tokens = dice.choice([replace_by_alternative, replace_by_alternative, wrap])(
                tokens, dice, []
            ) or [" "]
        text = "".join(tokens)
        compiled = compile_text(text)
        if runs_here(compiled) and not compiled.rejections:
            yield text


@cache
def single_streams(text: str) -> list[str]:
    """Split a script into single streams with their sources, which run faster."""
    statements = compile_text(text).statements
    streams = [item for item in statements if isinstance(item, st.CreateStream)]
    rest = [item for item in statements if not isinstance(item, st.CreateStream | st.CreateSink)]
    alone = ("".join(f"{item.text};\n" for item in (*rest, stream)) for stream in streams)
    return [script for script in alone if runs_here(compile_text(script))]


def runs_here(compiled: Compiled) -> bool:
    """Return whether a script is accepted, emits rows and needs only memory connectors."""
    if compiled.errors:
        return False
    connectors = {item.connector for item in compiled.declared if isinstance(item, Source | Sink)}
    streams = [item for item in compiled.declared if isinstance(item, Stream)]
    return bool(streams) and connectors <= {"memory", "console", "blackhole"}


# Rows that fit a type, including edge cases


def _moment(dice: random.Random) -> datetime:
    return START + timedelta(seconds=dice.randrange(600))


VALUES: dict[str, Callable[[random.Random], Any]] = {
    "BOOLEAN": lambda dice: dice.random() < 0.5,
    "STRING": lambda dice: dice.choice(["a", "b", "", "EUR", "7"]),
    "BINARY": lambda dice: b"x",
    "DATE": lambda dice: date(2026, 1, 1 + dice.randrange(3)),
    "TIMESTAMP": _moment,
    "TIMESTAMP_NTZ": lambda dice: _moment(dice).replace(tzinfo=None),
    "FLOAT": lambda dice: dice.choice([0.5, -1.0, 3.0]),
    "DOUBLE": lambda dice: dice.choice([0.5, -1.0, 3.0, 1e300]),
    "DECIMAL": lambda dice: Decimal(dice.randrange(100)),
    "ARRAY<STRING>": lambda dice: dice.choice([[], ["a"], ["a", "b"]]),
    "ARRAY<INT>": lambda dice: dice.choice([[], [1], [2, 3]]),
}
WHOLE = {"TINYINT", "SMALLINT", "INT", "BIGINT"}


def rows_for(source: Source, dice: random.Random, count: int = 12) -> list[dict[str, Any]]:
    """Generate rows of a source. Types that are not listed above become NULL."""
    rows = []
    for _ in range(count):
        row: dict[str, Any] = {}
        for column in source.columns:
            kind = (column.type or "").upper().partition("(")[0]
            make = (lambda dice: dice.randrange(5)) if kind in WHOLE else VALUES.get(kind)
            empty = make is None or (dice.random() < 0.1 and not column.not_null)
            if column.computed is None and column.metadata is None:
                row[column.name] = None if empty or make is None else make(dice)
        if source.options.get("changelog"):
            row["_op"] = "+I"
        rows.append(row)
    return rows


def probe(text: str, spark: Any, path: Path, dice: random.Random) -> Finding | None:
    """Declare a script, insert into its sources, and run it to its end."""
    try:
        with tidegate.open(path, spark=spark, show=lambda *_: None) as db:
            db.execute(text)
            _run(db, dice)
    except TidegateError as error:
        shown = error.render()
        if RAW.search(re.sub(r"(?m)^.*\|.*$", "", shown)) or (error.hint or "").startswith(
            UNEXPLAINED_HINT
        ):
            return Finding(f"{error.code} {error.message[:60]}", text, shown)
    except Exception as error:
        return Finding(f"{type(error).__name__} {str(error)[:60]}", text, traceback.format_exc())
    return None


def _run(db: tidegate.Session, dice: random.Random) -> None:
    declared = [item for item in map(db.catalog.get, db.catalog.names()) if item is not None]
    for item in declared:
        if isinstance(item, Stream | SideStream):
            db.subscribe(item.name)
        if isinstance(item, Source):
            db.insert(item.name, rows_for(item, dice))
    if any(isinstance(item, Stream) for item in declared):
        db.start(until_end=True)
        db.wait()


def findings(spark: Any, count: int, seed: int, folder: Path) -> Iterator[Finding]:
    """Yield the findings of a number of mutations."""
    dice = random.Random(seed)
    texts = candidates(dice)
    for number in range(count):
        finding = probe(next(texts), spark, folder / str(number), dice)
        shutil.rmtree(folder / str(number), ignore_errors=True)
        if finding is not None:
            yield finding


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    from tidegate.spark.session import own_session

    found: dict[str, Finding] = {}
    with tempfile.TemporaryDirectory() as folder:
        spark = own_session("local[2]", Path(folder) / "spark.log")
        for finding in findings(spark, options.mutations, options.seed, Path(folder)):
            if finding.kind not in found:
                found[finding.kind] = finding
                print(f"== {finding.kind}\n{finding.text}\n{finding.error}\n", flush=True)
        spark.stop()
    print(f"{options.mutations:,} declared and run, {len(found)} found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
