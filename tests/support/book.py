"""The code blocks of the pages, what is done with each, and the rows that their comments show.

A block of `sql` is compiled, over the sources below where it does not declare its own. Behind a line
`-- bids:` stand rows for a source, behind `-- out:` or the name of a stream what comes out then, and
behind `-- end:` what comes out when the input has ended. Every source line is an epoch of its own.

The title of a block says what else it is: a file of the tutorial, `syntax` for a form with … and
[ ], `rejected: TG-401` (also behind a file), or `not run: …` with the reason. That is the only way not to be run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import cache
from pathlib import Path
from typing import Any

from tidegate.catalog.objects import tables_in
from tidegate.sql import statements as st
from tidegate.sql.parser import parse_script

ROOT = Path(__file__).parents[2]
LANGUAGE = "docs/LANGUAGE.md"
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
    "trades": "CREATE SOURCE trades (symbol STRING, price DOUBLE, ts TIMESTAMP, WATERMARK FOR ts AS "
    "ts) WITH (connector = 'memory')",
    "late_bids": "CREATE STREAM of_late_bids AS SELECT auction, count(*) AS n FROM bids GROUP BY "
    "auction, TUMBLE(ts, INTERVAL '1' MINUTE) EMIT ON WINDOW CLOSE LATE DATA TO late_bids",
}
_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'^(\w+)(?: title="([^"]+)")?$')
_LABEL = re.compile(r"(?:^|(?<=\s))(epoch \d+|(?!nothing)[a-z_]+):(?=\s)")
_FILE = re.compile(r"([\w./-]+\.(?:sql|json|yaml|csv))(?:, rejected: TG-\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, by its place in the repository."""

    page: str
    line: int
    language: str
    title: str
    text: str
    # A block of `text` right behind it: what it says when it is run.
    answer: str = ""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file of the tutorial that it is."""
        found = _FILE.fullmatch(self.title)
        return found.group(1) if found else None

    @property
    def not_run(self) -> bool:
        return self.title.startswith("not run: ")

    @property
    def rejected(self) -> str | None:
        """The code of the error that it gets."""
        found = re.search(r"rejected: (TG-\d+)$", self.title)
        return found.group(1) if found else None

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

    @property
    def treatment(self) -> str:
        """What the tests do with it."""
        if self.title == "syntax" or self.not_run:
            return "marked"
        if self.language == "sql":
            labels = {label for label, _ in self.shown()}
            return "rejected" if self.rejected else "rows" if labels else "compiled"
        if self.language == "yaml":
            return "case" if re.search(r"(?m)^(query|script):", self.text) else "read"
        return {"python": "run", "bash": "commands", "json": "read", "text": "text"}[self.language]


def pages() -> list[str]:
    """All pages with code, by their place in the repository."""
    beside = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "benchmarks/README.md"]
    book = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return beside + book


@cache
def blocks() -> tuple[Block, ...]:
    """Every block of every page, in order."""
    return tuple(block for page in pages() for block in _blocks_of(page))


def blocks_of(page: str) -> list[Block]:
    return [block for block in blocks() if block.page == page]


def _blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text("utf-8")
    found: list[Block] = []
    end = -1
    for fence in _FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        info = _TITLE.match(fence.group(2))
        assert info, f'{page}:{line}: a block says its language, and if need be title="…"'
        indent = len(fence.group(1))
        body = "".join(each[indent:] or "\n" for each in fence.group(3).splitlines(keepends=True))
        if info.group(1) == "text" and found and not text[end : fence.start()].strip():
            found[-1] = replace(found[-1], answer=body)
        end = fence.end()
        found.append(Block(page, line, info.group(1), info.group(2) or "", body))
    return found


def _missing(sql: str) -> list[str]:
    """What a script reads and does not declare, sources first."""
    statements = parse_script(sql).statements
    declared = {s.name.lower() for s in statements if isinstance(s, st.Declaration)}
    queries = [s.query.tree for s in statements if isinstance(s, st.CreateStream)]
    read = {name.lower() for tree in queries for name in tables_in(tree)}
    read |= {"bids"} if "late_bids" in read - declared - _late(statements) else set()
    return [name for name in READ if name in read - declared - _late(statements)]


def _late(statements: tuple[st.Statement, ...]) -> set[str]:
    """Late streams that a script declares itself."""
    text = " ".join(s.text for s in statements)
    return {name.lower() for name in re.findall(r"LATE DATA TO (\w+)", text)}


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
    if word in ("NULL", "true", "false"):
        return {"NULL": None, "true": True, "false": False}[word]
    return float(word) if re.fullmatch(r"-?\d+\.\d+", word) else word


def word(given: Any) -> str:
    """A value as a page shows it."""
    if given is None:
        return "NULL"
    if isinstance(given, datetime):
        return f"{given:%H:%M:%S}"
    return given.isoformat() if isinstance(given, date) else str(given)
