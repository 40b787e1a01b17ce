"""The code blocks of the documentation, how tests treat them, and the rows that their comments show.

A block of `sql` is compiled with the sources below, unless it declares its own. After a line
`-- bids:` there are rows for a source, after `-- out:` or the name of a stream its output, and
after `-- end:` the output at the end of the input. Every source line is a separate epoch.

The title of a block has other properties: a file of the tutorial, `syntax` for a form with … and
[ ], or `rejected: TG-401` (also after a file). A block that tests do not run has the reason in its
title, which readers see: `needs …`, `runs until …`, `excerpt of …` or `for comparison: …`. All
other blocks run.
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
# Sources that examples read without declaring them.
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
_NOT_RUN = re.compile(r"(needs|runs until|excerpt of|for comparison:) \S.*")
_FILE = re.compile(r"([\w./-]+\.(?:sql|json|yaml|csv))(?:, rejected: TG-\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    title: str
    text: str
    # The text of a `text` block right after this one: its output.
    answer: str = ""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file of the tutorial that the block contains."""
        match = _FILE.fullmatch(self.title)
        return match.group(1) if match else None

    @property
    def not_run(self) -> bool:
        return _NOT_RUN.fullmatch(self.title) is not None

    @property
    def rejected(self) -> str | None:
        """The code of the error that rejects the block."""
        match = re.search(r"rejected: (TG-\d+)$", self.title)
        return match.group(1) if match else None

    @property
    def sql(self) -> str:
        """The block as a script: a single query becomes a stream."""
        text = self.text.strip()
        if text.startswith("SELECT"):
            query = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
            return f"CREATE STREAM example AS {query.rstrip().rstrip(';')};"
        return text

    def with_sources(self) -> str:
        """Return the script with the sources that it reads and does not declare."""
        needed = [f"{READ[name]};" for name in _missing(self.sql)]
        return "\n".join([*needed, self.sql])

    def shown(self) -> list[tuple[str, list[list[str]]]]:
        """Return the labels of its comments, each with rows of words."""
        comments = "\n".join(
            line.strip().removeprefix("--") for line in self.text.splitlines() if "--" in line[:2]
        )
        parts = _LABEL.split(comments)
        return [(label, _rows(rows)) for label, rows in zip(parts[1::2], parts[2::2], strict=True)]

    @property
    def treatment(self) -> str:
        """How tests treat the block."""
        if self.title == "syntax" or self.not_run:
            return "marked"
        if self.language == "sql":
            labels = {label for label, _ in self.shown()}
            return "rejected" if self.rejected else "rows" if labels else "compiled"
        if self.language == "yaml":
            return "case" if re.search(r"(?m)^(query|script):", self.text) else "read"
        return {"python": "run", "bash": "commands", "json": "read", "text": "text"}[self.language]


def pages() -> list[str]:
    """Return the paths of all pages that may have code."""
    beside = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "benchmarks/README.md"]
    book = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return beside + book


@cache
def blocks() -> tuple[Block, ...]:
    """Return every block of every page, in order."""
    return tuple(block for page in pages() for block in _blocks_of(page))


def blocks_of(page: str) -> list[Block]:
    return [block for block in blocks() if block.page == page]


def _blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text("utf-8")
    page_blocks: list[Block] = []
    end = -1
    for fence in _FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        info = _TITLE.match(fence.group(2))
        assert info, f'{page}:{line}: write a language, and optionally title="…"'
        indent = len(fence.group(1))
        body = "".join(each[indent:] or "\n" for each in fence.group(3).splitlines(keepends=True))
        if info.group(1) == "text" and page_blocks and not text[end : fence.start()].strip():
            page_blocks[-1] = replace(page_blocks[-1], answer=body)
        end = fence.end()
        page_blocks.append(Block(page, line, info.group(1), info.group(2) or "", body))
    return page_blocks


def _missing(sql: str) -> list[str]:
    """Return the names that a script reads and does not declare, sources first."""
    statements = parse_script(sql).statements
    declared = {s.name.lower() for s in statements if isinstance(s, st.Declaration)}
    queries = [s.query.tree for s in statements if isinstance(s, st.CreateStream)]
    read = {name.lower() for tree in queries for name in tables_in(tree)}
    read |= {"bids"} if "late_bids" in read - declared - _late(statements) else set()
    return [name for name in READ if name in read - declared - _late(statements)]


def _late(statements: tuple[st.Statement, ...]) -> set[str]:
    """Return the late streams that a script declares."""
    text = " ".join(s.text for s in statements)
    return {name.lower() for name in re.findall(r"LATE DATA TO (\w+)", text)}


def _rows(text: str) -> list[list[str]]:
    """Split rows at lines and commas; rows in parentheses contain commas."""
    if text.strip().startswith("nothing"):
        return []
    grouped = re.findall(r"\(([^)]*)\)", text)
    if grouped:
        return [[word.strip() for word in row.split(",")] for row in grouped]
    rows = [row.split() for line in text.splitlines() for row in line.split(",")]
    return [[word for word in row if word != "at"] for row in rows if row]


def value(word: str) -> Any:
    """Convert a word to a value to insert; times get a fixed date."""
    if re.fullmatch(r"\d\d:\d\d:\d\d", word):
        return f"2026-01-01 {word}"
    if re.fullmatch(r"-?\d+", word):
        return int(word)
    if word in ("NULL", "true", "false"):
        return {"NULL": None, "true": True, "false": False}[word]
    return float(word) if re.fullmatch(r"-?\d+\.\d+", word) else word


def word(item: Any) -> str:
    """Convert a value to the word that a page shows."""
    if item is None:
        return "NULL"
    if isinstance(item, datetime):
        return f"{item:%H:%M:%S}"
    return item.isoformat() if isinstance(item, date) else str(item)
