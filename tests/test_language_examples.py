"""Every example of LANGUAGE.md is accepted as it stands; tests/spark shows that its rows are true."""

from __future__ import annotations

import ast
import re

import pytest

from tests.compiling import compile_text
from tests.language import PAGE, Example, examples
from tidegate.cli.inputs import parts_of

EXAMPLES = examples()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"line {example.line}")
def test_example(example: Example) -> None:
    if example.language == "sql":
        # Queries over what is kept are DuckDB's.
        parts = parts_of(example.with_sources())
        compiled = compile_text("".join(part.strip() for kind, part in parts if kind != "query"))
        errors = (*compiled.errors, *compiled.unrunnable)
        assert not errors, "\n".join(error.render() for error in errors)
        assert compiled.statements, "an example says something"
    elif example.language == "python":
        ast.parse(example.text)
    elif example.language == "sql syntax":
        assert re.search(r"[…\[|]", example.text), "an example that can be run is run"
    else:
        assert example.language == "text", f"nobody runs {example.language}"


def test_links_of_the_page_lead_somewhere() -> None:
    page = PAGE.read_text("utf-8")
    headings = re.findall(r"(?m)^#+ (.+)$", page)
    known = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for target in re.findall(r"\]\(#([^)]+)\)", page):
        assert target in known, f"#{target} is no heading"
