"""The examples of docs/LANGUAGE.md: fenced blocks, and the rows that their comments show.

A block of `sql` is run as it stands, over the sources below where it does not declare its own; one
of `sql syntax` shows a form, with … and [ ]. Rows stand behind `epoch 0:`, or behind the name of a
source or `in:` for what goes in, and `out:` for what comes out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tidegate.catalog.objects import tables_in
from tidegate.sql import statements as st
from tidegate.sql.parser import parse_script

PAGE = Path(__file__).parents[1] / "docs" / "LANGUAGE.md"
# What the examples read without declaring it.
READ = {
    "bids": "CREATE SOURCE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts - "
    "INTERVAL '5' SECOND) WITH (connector = 'memory')",
    "asks": "CREATE SOURCE asks (auction BIGINT, seller STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
    "WITH (connector = 'memory')",
    "clicks": "CREATE SOURCE clicks (id BIGINT, page STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
    "WITH (connector = 'memory')",
    "orders": "CREATE SOURCE orders (id BIGINT, user_id BIGINT, customer BIGINT, amount DOUBLE, ts "
    "TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'memory')",
    "readings": "CREATE SOURCE readings (sensor STRING, value DOUBLE, ts TIMESTAMP, WATERMARK FOR ts "
    "AS ts) WITH (connector = 'memory')",
    "sales": "CREATE SOURCE sales (item STRING, amount BIGINT) WITH (connector = 'memory')",
    "late_bids": "CREATE STREAM of_late_bids AS SELECT auction, count(*) AS n FROM bids GROUP BY "
    "auction, TUMBLE(ts, INTERVAL '1' MINUTE) EMIT ON WINDOW CLOSE LATE DATA TO late_bids",
}
_FENCE = re.compile(r"^```([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LABEL = re.compile(r"(?:^|(?<=\s))(epoch \d+|(?!nothing)[a-z_]+):(?=\s)")


@dataclass(frozen=True)
class Example:
    """A fenced block of the page."""

    line: int
    language: str
    text: str

    @property
    def sql(self) -> str:
        """As a script: a query on its own gets a name."""
        text = self.text.strip()
        if text.startswith("SELECT"):
            query = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
            return f"CREATE STREAM example AS {query.rstrip().rstrip(';')};"
        return text

    def with_sources(self) -> str:
        """The script after the sources that it reads and does not declare."""
        needed = [f"{READ[name]};" for name in _missing(self.sql)]
        return "\n".join([*needed, self.sql])

    def shown(self) -> list[tuple[str, list[list[str]]]]:
        """What its comments show: a label and its rows, word by word."""
        told = "\n".join(
            line.strip().removeprefix("--") for line in self.text.splitlines() if "--" in line[:2]
        )
        parts = _LABEL.split(told)
        return [(label, _rows(rows)) for label, rows in zip(parts[1::2], parts[2::2], strict=True)]


def examples() -> list[Example]:
    page = PAGE.read_text("utf-8")
    return [
        Example(page.count("\n", 0, found.start()) + 1, found.group(1), found.group(2))
        for found in _FENCE.finditer(page)
    ]


def _missing(sql: str) -> list[str]:
    """What a script reads and does not declare, sources first."""
    statements = parse_script(sql).statements
    declared = {s.name.lower() for s in statements if isinstance(s, st.Declaration)}
    queries = [s.query.tree for s in statements if isinstance(s, st.CreateStream)]
    read = {name.lower() for tree in queries for name in tables_in(tree)}
    read |= {"bids"} if "late_bids" in read else set()
    return [name for name in READ if name in read - declared]


def _rows(text: str) -> list[list[str]]:
    """Rows by lines and commas; those with parentheses have commas inside."""
    if text.strip().startswith("nothing"):
        return []
    grouped = re.findall(r"\(([^)]*)\)", text)
    if grouped:
        return [[word.strip() for word in row.split(",")] for row in grouped]
    rows = [row.split() for line in text.splitlines() for row in line.split(",")]
    return [[word for word in row if word != "at"] for row in rows if row]


def value(word: str) -> Any:
    """A word as a value to insert: times are of one day."""
    if re.fullmatch(r"\d\d:\d\d:\d\d", word):
        return f"2026-01-01 {word}"
    if re.fullmatch(r"-?\d+", word):
        return int(word)
    return float(word) if re.fullmatch(r"-?\d+\.\d+", word) else word


def word(given: Any) -> str:
    """A value as the page shows it."""
    if given is None:
        return "NULL"
    return f"{given:%H:%M:%S}" if isinstance(given, datetime) else str(given)
