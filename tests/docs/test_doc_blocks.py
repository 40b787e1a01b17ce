"""Check every code block of the documentation; tests/spark runs the blocks that need Spark.

Building the site checks links and anchors.
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
from tests.support.compiling import TESTS, compile_text
from tests.support.doc_blocks import LANGUAGE, READ, ROOT, Block, blocks, pages
from tests.support.doc_commands import commands, require_known, require_parsed, words_of
from tidegate.cli.main import app
from tidegate.cli.shell import split_input

BLOCKS = blocks()
# Blocks that tests/spark runs.
ON_SPARK = ("rows", "run", "case")


def id_of(block: Block) -> str:
    return block.where


def blocks_with(*treatments: str) -> list[Block]:
    return [block for block in BLOCKS if block.treatment in treatments]


@pytest.mark.parametrize("block", blocks_with("compiled", "rows"), ids=id_of)
def test_sql_is_accepted(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"\$\{(\w+)\}", block.text):
        monkeypatch.setenv(name, "localhost")
    # DuckDB runs queries over stored rows.
    parts = split_input(block.with_sources())
    compiled = compile_text("".join(part.strip() for kind, part in parts if kind != "query"))
    errors = (*compiled.errors, *compiled.rejections)
    assert not errors, "\n".join(error.render() for error in errors)
    assert compiled.statements, "the example has no statements"


@pytest.mark.parametrize("block", blocks_with("rejected"), ids=id_of)
def test_sql_is_rejected(block: Block) -> None:
    compiled = compile_text(block.with_sources())
    assert {error.code for error in compiled.errors} == {block.rejected}


@pytest.mark.parametrize("block", blocks_with("rows"), ids=id_of)
def test_rows_belong_to_declared_names(block: Block) -> None:
    """A misspelled name would never be checked."""
    labels = {label for label, _ in block.shown()}
    if all(label.startswith("epoch ") for label in labels):
        assert block.page == LANGUAGE, f"only {LANGUAGE} has rows by epoch"
        return
    declared = set(
        re.findall(r"(?:SOURCE|STREAM|VIEW|TABLE|LATE DATA TO) (\w+)", block.with_sources())
    )
    assert labels <= declared | {"in", "out", "end"}
    assert labels & (declared | {"out", "end"}), "the block shows no output"


@pytest.mark.parametrize("block", blocks_with("marked"), ids=id_of)
def test_blocks_that_do_not_run_parse(block: Block) -> None:
    if block.title == "syntax":
        assert re.search(r"[…\[|]", block.text), "a complete example is marked as syntax"
        return
    if block.language == "python":
        ast.parse(block.text)
    elif block.language == "bash":
        for command in commands(block):
            require_known(command)
    else:
        raise AssertionError(f"{block.language} can always be run")


@pytest.mark.parametrize("block", blocks_with("run"), ids=id_of)
def test_python_parses(block: Block) -> None:
    ast.parse(block.text)


def needs_no_spark(command: str) -> bool:
    """Return whether a command needs no Spark and reads a file of the repository."""
    words = words_of(command)
    return words[1:2] in (["check"], ["explain"]) and (ROOT / words[2]).is_file()


@pytest.mark.parametrize("block", blocks_with("commands"), ids=id_of)
def test_commands_are_known(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    block_commands = commands(block)
    assert block_commands, "the block has no commands"
    for command in block_commands:
        require_known(command)
        if needs_no_spark(command):
            result = CliRunner().invoke(app, words_of(command)[1:])
            assert result.exit_code == 0, result.output


@pytest.mark.parametrize("block", blocks_with("read", "case"), ids=id_of)
def test_data_parses(block: Block) -> None:
    if block.language == "yaml":
        assert yaml.safe_load(block.text)
        return
    try:
        assert json.loads(block.text)
    except json.JSONDecodeError:
        assert all(json.loads(line) for line in block.text.splitlines())


def test_every_block_is_counted(golden: Golden) -> None:
    """Every treatment is tested; a golden file counts the blocks of each page that run or are marked."""
    ways = Counter(block.treatment for block in BLOCKS)
    light = {"compiled", "rejected", "marked", "commands", "read", "text"}
    assert set(ways) == light | set(ON_SPARK)
    counts = Counter((block.page, block.treatment) for block in BLOCKS)
    lines = []
    for page in pages():
        counted = [
            f"{counts[page, way]} {way}" for way in (*ON_SPARK, "marked") if counts[page, way]
        ]
        lines += [f"{page}: {', '.join(counted)}"] if counted else []
    golden(TESTS / "support" / "doc_blocks.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("page", [page for page in pages() if "/concepts/" in page])
def test_concept_page_has_a_picture_and_a_running_example(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    (picture,) = re.findall(r"!\[[^\]]+\]\(\.\./(images/\w+\.svg)\)", text)
    drawing = ElementTree.parse(ROOT / "docs" / picture).getroot()
    assert drawing.get("aria-label"), "the picture has no label"
    assert "prefers-color-scheme:dark" in (ROOT / "docs" / picture).read_text("utf-8")
    assert {"rows", "run"} & {block.treatment for block in BLOCKS if block.page == page}


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.title], ids=id_of)
def test_titles_are_known(block: Block) -> None:
    """A misspelled title would be shown to readers and have no effect."""
    assert block.title == "syntax" or block.not_run or block.file or block.rejected, block.title


def test_fences_are_closed() -> None:
    for page in pages():
        text = (ROOT / page).read_text("utf-8")
        fences = len(re.findall(r"(?m)^ *```", text))
        assert fences == 2 * len([block for block in BLOCKS if block.page == page]), page


def test_unknown_commands_are_rejected() -> None:
    assert needs_no_spark("tidegate explain examples/demo.sql price_bands")
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


def test_every_predeclared_source_is_used() -> None:
    read = {name for block in BLOCKS for name in READ if name in block.text}
    assert read == set(READ)


def test_language_page_declares_the_sources_of_its_examples() -> None:
    declared = {
        text.strip().split()[2]: " ".join(text.split())
        for block in BLOCKS
        if block.page == LANGUAGE and block.text.startswith("CREATE SOURCE")
        for text in re.sub(r"--.*", "", block.text).split(";")
        if text.strip()
    }
    for name in ("bids", "asks", "clicks", "readings", "sales"):
        assert declared[name].replace("( ", "(") == READ[name], name


def test_site_builds_without_warnings(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Warnings include dead links, missing anchors and pages outside of the navigation."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    with caplog.at_level(logging.INFO, "mkdocs"):
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"))
        build(config)
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert warnings == []
    assert (tmp_path / "site" / "concepts" / "watermarks.html").is_file()
    assert "http" not in "".join(
        re.findall(
            r'<(?:script|link)[^>]+(?:src|href)="([^"]+)"',
            (tmp_path / "site" / "index.html").read_text(),
        )
    ), "the page loads files from the network"
