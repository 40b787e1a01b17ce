"""The language of documentation, messages and code: no stilted phrases, no class name twice.

The deny list collects phrases that readers stumbled over. Add to it when a reader reports another
one; fix the text, not the list.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tidegate"
STILTED = re.compile(
    r"\b(whoever|nobody|somebody|everybody|anew|mend(s|ed|ing)?|of before|is away|stays away|let go|"
    r"lets go|for good|what (came|comes|is there|was there|is asked|was asked|is wanted|was said|is "
    r"kept|was kept|it has)|goes on where|go on where|so many|(is|are|was|were) no \w+|tells? (the|"
    r"its|what|how|which|of)|says? (so|nothing|what|how|which|when)|is told|are told|besides|by "
    r"itself that|gives? out|given out|stands? (there|elsewhere|in the way)|held against|asks? (the|"
    r"it|what|whether))\b",
    re.IGNORECASE,
)
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
MODULES = sorted(PACKAGE.rglob("*.py"))


def stilted(text: str) -> Iterator[str]:
    """Find the phrases of the deny list, with their line numbers."""
    for number, line in enumerate(text.splitlines(), start=1):
        for match in STILTED.finditer(line):
            yield f"{number}: {match[0]}"


def test_deny_list_finds_phrases() -> None:
    assert list(stilted("Rows are read.\nThe sink is told, and goes on where it was.")) == [
        "2: is told",
        "2: goes on where",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_page_is_plain_english(page: Path) -> None:
    assert not list(stilted(page.read_text("utf-8")))


def test_code_is_plain_english() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{phrase}"
        for path in MODULES
        for phrase in stilted(path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


def test_public_class_names_are_unique() -> None:
    names = Counter(
        node.name
        for path in MODULES
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_packages_say_what_they_contain() -> None:
    """Each package opens with a paragraph: its content, its imports, where to start reading."""
    for path in PACKAGE.rglob("__init__.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        assert len(docstring) >= 150, f"{path.relative_to(ROOT)} does not describe its package"
