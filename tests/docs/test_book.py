"""Every block of every page is what it says; tests/spark runs what needs Spark.

Links and anchors are held by the site, which is built here without a warning.
"""

from __future__ import annotations

import ast
import json
import logging
import re
from collections import Counter
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from typer.testing import CliRunner

from tests.conftest import Golden
from tests.support.book import LANGUAGE, READ, ROOT, Block, blocks, pages
from tests.support.book_commands import commands, require_known, require_parsed, words_of
from tests.support.compiling import TESTS, compile_text
from tidegate.cli.main import app
from tidegate.cli.shell import split_input

BLOCKS = blocks()
# What tests/spark does with blocks.
ON_SPARK = ("rows", "run", "case")


def id_of(block: Block) -> str:
    return block.where


def of(*treatments: str) -> list[Block]:
    return [block for block in BLOCKS if block.treatment in treatments]


@pytest.mark.parametrize("block", of("compiled", "rows"), ids=id_of)
def test_sql_is_accepted(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"\$\{(\w+)\}", block.text):
        monkeypatch.setenv(name, "localhost")
    # Queries over what is kept are DuckDB's.
    parts = split_input(block.with_sources())
    compiled = compile_text("".join(part.strip() for kind, part in parts if kind != "query"))
    errors = (*compiled.errors, *compiled.unrunnable)
    assert not errors, "\n".join(error.render() for error in errors)
    assert compiled.statements, "an example says something"


@pytest.mark.parametrize("block", of("rejected"), ids=id_of)
def test_sql_is_rejected(block: Block) -> None:
    compiled = compile_text(block.with_sources())
    assert {error.code for error in compiled.errors} == {block.rejected}


@pytest.mark.parametrize("block", of("rows"), ids=id_of)
def test_rows_stand_behind_names_that_are_declared(block: Block) -> None:
    """What is misspelt would be run by nobody."""
    labels = {label for label, _ in block.shown()}
    if all(label.startswith("epoch ") for label in labels):
        assert block.page == LANGUAGE, "rows by the number of their epoch are those of one page"
        return
    declared = set(
        re.findall(r"(?:SOURCE|STREAM|VIEW|TABLE|LATE DATA TO) (\w+)", block.with_sources())
    )
    assert labels <= declared | {"in", "out", "end"}
    assert labels & (declared | {"out", "end"}), "something comes out"


@pytest.mark.parametrize("block", of("marked"), ids=id_of)
def test_what_is_not_run_says_why_and_can_be_read(block: Block) -> None:
    if block.title == "syntax":
        assert re.search(r"[…\[|]", block.text), "an example that can be run is run"
        return
    assert len(block.title) > len("not run: "), "the reason is missing"
    if block.language == "python":
        ast.parse(block.text)
    elif block.language == "bash":
        for command in commands(block):
            require_known(command)
    else:
        raise AssertionError(f"{block.language} can always be run")


@pytest.mark.parametrize("block", of("run"), ids=id_of)
def test_python_can_be_read(block: Block) -> None:
    ast.parse(block.text)


def harmless(command: str) -> bool:
    """What needs no Spark, over a file of the repository."""
    words = words_of(command)
    return words[1:2] in (["check"], ["explain"]) and (ROOT / words[2]).is_file()


@pytest.mark.parametrize("block", of("commands"), ids=id_of)
def test_commands_are_known(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = commands(block)
    assert found, "a block of commands has one"
    for command in found:
        require_known(command)
        if harmless(command):
            result = CliRunner().invoke(app, words_of(command)[1:])
            assert result.exit_code == 0, result.output


@pytest.mark.parametrize("block", of("read", "case"), ids=id_of)
def test_data_can_be_read(block: Block) -> None:
    if block.language == "yaml":
        assert yaml.safe_load(block.text)
        return
    try:
        assert json.loads(block.text)
    except json.JSONDecodeError:
        assert all(json.loads(line) for line in block.text.splitlines())


def test_every_block_is_counted(golden: Golden) -> None:
    """Each is taken by one of the tests; how many of a page are run, or marked, is on record."""
    ways = Counter(block.treatment for block in BLOCKS)
    light = {"compiled", "rejected", "marked", "commands", "read", "text"}
    assert set(ways) == light | set(ON_SPARK)
    counts = Counter((block.page, block.treatment) for block in BLOCKS)
    lines = []
    for page in pages():
        told = [f"{counts[page, way]} {way}" for way in (*ON_SPARK, "marked") if counts[page, way]]
        lines += [f"{page}: {', '.join(told)}"] if told else []
    golden(TESTS / "support" / "book_blocks.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("page", [page for page in pages() if "/concepts/" in page])
def test_a_concept_has_a_picture_and_an_example_that_runs(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    (picture,) = re.findall(r"!\[[^\]]+\]\(\.\./(images/\w+\.svg)\)", text)
    drawn = ElementTree.parse(ROOT / "docs" / picture).getroot()
    assert drawn.get("aria-label"), "a picture says what it shows"
    assert "prefers-color-scheme:dark" in (ROOT / "docs" / picture).read_text("utf-8")
    assert {"rows", "run"} & {block.treatment for block in BLOCKS if block.page == page}


def test_fences_are_closed() -> None:
    for page in pages():
        text = (ROOT / page).read_text("utf-8")
        fences = len(re.findall(r"(?m)^ *```", text))
        assert fences == 2 * len([block for block in BLOCKS if block.page == page]), page


def test_a_command_that_is_none_is_found() -> None:
    assert harmless("tidegate explain examples/demo.sql price_bands")
    for words in (["run"], ["rum", "x.sql"], ["run", "x.sql", "--unti-end"]):
        with pytest.raises(AssertionError):
            require_parsed(words)
    require_known("python -m benchmarks.nexmark run q5 --rows 10")
    with pytest.raises(AssertionError):
        require_known("python -m benchmarks.nexmark walk")
    with pytest.raises(AssertionError):
        require_known("make tea")
    with pytest.raises(AssertionError):
        require_known("pip install 'tidegate[tea]'")


def test_what_the_examples_read_is_only_what_they_need() -> None:
    read = {name for block in BLOCKS for name in READ if name in block.text}
    assert read == set(READ)


def test_the_site_has_no_warning(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Among them: links that lead nowhere, anchors that are none, pages that nobody finds."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    with caplog.at_level(logging.INFO, "mkdocs"):
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"))
        build(config)
    complaints = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert complaints == []
    assert (tmp_path / "site" / "concepts" / "watermarks.html").is_file()
    assert "http" not in "".join(
        re.findall(
            r'<(?:script|link)[^>]+(?:src|href)="([^"]+)"',
            (tmp_path / "site" / "index.html").read_text(),
        )
    ), "nothing is fetched from the network"
