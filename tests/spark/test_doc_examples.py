"""Run the examples of the documentation: rows, Python, test cases and tutorials."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tidegate
from tests.support.doc_blocks import LANGUAGE, READ, ROOT, Block, blocks, blocks_of, value, word
from tests.support.doc_commands import HARMLESS, commands, words_of
from tests.support.sessions import rows_of
from tidegate.catalog.objects import LookupTable, Source, Stream
from tidegate.cli.main import app
from tidegate.testing import load_case, run_case

pytestmark = pytest.mark.spark

# test_readme.py runs the blocks of README.
README = "README.md"
TUTORIALS = ("docs/tutorial/first_stream.md", "docs/tutorial/dashboard.md")


def id_of(block: Block) -> str:
    return block.where


def block_containing(text: str) -> Block:
    (block,) = [block for block in blocks_of(LANGUAGE) if text in block.text]
    return block


def insert_rows(session: Any, source: str, rows: list[list[str]]) -> None:
    declared = session.catalog.get(source)
    assert isinstance(declared, Source | LookupTable)
    names = [column.name for column in declared.columns if column.computed is None]
    names += ["_op"] if rows and len(rows[0]) > len(names) else []
    session.insert(source, [dict(zip(names, map(value, row), strict=True)) for row in rows])


def as_shown(rows: list[dict[str, Any]], like: list[list[str]]) -> list[list[str]]:
    """Return rows as words, with as many columns as the page shows."""
    width = len(like[0]) if like else 0
    return [[word(item) for item in row.values()][:width] for row in rows]


def by_epoch(block: Block) -> bool:
    return any(label.startswith("epoch") for label, _ in block.shown())


def test_examples_emit_the_documented_rows_in_three_epochs(spark: Any, data: Path) -> None:
    """Run all examples over the bids of the page in one pipeline."""
    bids = block_containing("-- epoch 0:  (1, 10")
    queries = [b for b in blocks_of(LANGUAGE) if b.treatment == "rows" and by_epoch(b)]
    queries.remove(bids)
    assert len(queries) >= 4
    late = block_containing("1  09:01:00  2  30  -U")
    python = block_containing("db.function(")
    assert [b for b in blocks_of(LANGUAGE) if b.treatment == "run"] == [python], (
        "a Python block does not run"
    )
    with tidegate.open(data, spark=spark) as session:
        session.execute(bids.sql)
        shown: dict[str, list[tuple[str, list[list[str]]]]] = {}
        for number, example in enumerate(queries):
            name = f"example_{number}"
            session.execute(example.sql.replace("STREAM example AS", f"STREAM {name} AS"))
            (stream,) = [s.name for s in session.catalog.of_type(Stream) if s.name not in shown]
            shown[stream] = example.shown()
        lateness = block_containing("max(price) AS top\nFROM bids GROUP BY auction, TUMBLE").sql
        lateness = lateness.replace("STREAM example", "STREAM again").replace(
            "WINDOW CLOSE", "WINDOW CLOSE ALLOW LATENESS INTERVAL '1' MINUTE"
        )
        session.execute(lateness)
        shown["again"] = late.shown()
        file = data.parent / "example.py"
        file.write_text(python.text)
        exec(compile(python.text, str(file), "exec"), {"db": session})
        readers = {name: session.subscribe(name) for name in [*shown, "labels"]}
        session.start()
        for label, rows in bids.shown():
            assert label.startswith("epoch")
            insert_rows(session, "bids", rows)
            session.wait()
        for name, documented in shown.items():
            rows_by_epoch = {batch.epoch: rows_of([batch]) for batch in readers[name].take_all()}
            assert documented, f"{name} shows no rows"
            for label, rows in documented:
                rows_out = rows_by_epoch.get(int(label.removeprefix("epoch ")), [])
                wide = len(rows_out[0]) if rows_out else 0
                expected = [row[:wide] for row in rows]
                assert sorted(as_shown(rows_out, expected)) == sorted(expected), (name, label)
        assert [row["label"] for row in rows_of(readers["labels"].take_all())] == [
            "1: 60",
            "1: 180",
        ]


@pytest.mark.parametrize(
    "block", [b for b in blocks() if b.treatment == "rows" and not by_epoch(b)], ids=id_of
)
def test_examples_emit_the_documented_rows(
    spark: Any, data: Path, monkeypatch: pytest.MonkeyPatch, block: Block
) -> None:
    """Each line of a source is a separate epoch."""
    monkeypatch.chdir(data.parent)
    labels = [label for label, _ in block.shown()]
    with tidegate.open(data, spark=spark) as session:
        session.execute(block.with_sources())
        sources = [i.name for kind in (Source, LookupTable) for i in session.catalog.of_type(kind)]
        streams = [item.name for item in session.catalog.of_type(Stream)]
        named = [label for label in labels if label not in {"in", "out", "end", *sources}]
        readers = {name: session.subscribe(name) for name in dict.fromkeys(named or streams[-1:])}
        session.start()
        for label, rows in block.shown():
            if label in {"in", *sources}:
                insert_rows(session, sources[0] if label == "in" else label, rows)
                session.wait()
                continue
            if label == "end":
                session.stop()
                session.start(until_end=True)
                session.wait()
            if label in readers or rows or label == "out":
                reader = readers[label if label in readers else streams[-1]]
                emitted = rows_of(reader.take_all())
                assert sorted(as_shown(emitted, rows)) == sorted(rows), label


def printed(block: Block) -> list[str]:
    """Return the output that the comments of a block or the following text block show."""
    return re.findall(r"(?m)^ *print\(.*\)  # (.+)$", block.text) or block.answer.splitlines()


@pytest.mark.parametrize(
    "block",
    [b for b in blocks() if b.treatment == "run" and b.page not in (README, LANGUAGE, *TUTORIALS)],
    ids=id_of,
)
def test_python_runs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: Block
) -> None:
    """A block that opens no session gets one with the sources that it reads."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    file = tmp_path / "example.py"
    file.write_text(block.text)
    output = io.StringIO()
    with contextlib.ExitStack() as stack:
        names: dict[str, Any] = {"__name__": "example", "tidegate": tidegate}
        if "tidegate.open(" not in block.text:
            session = stack.enter_context(tidegate.open(tmp_path / "own", spark=spark))
            read = [READ[name] for name in READ if re.search(rf"\b{name}\b", block.text)]
            session.execute("".join(f"{text};" for text in read) or READ["bids"])
            names |= {"db": session}
        stack.enter_context(contextlib.redirect_stdout(output))
        exec(compile(block.text, str(file), "exec"), names)
    expected = printed(block)
    if expected:
        assert output.getvalue().splitlines() == expected


@pytest.mark.parametrize("block", [b for b in blocks() if b.treatment == "case"], ids=id_of)
def test_cases_pass(spark: Any, tmp_path: Path, block: Block) -> None:
    path = tmp_path / "case.yaml"
    path.write_text(block.text)
    outcome = run_case(load_case(path), spark=spark)
    assert outcome.passed, f"{outcome.reason}\n{outcome.detail}"


class TutorialReader:
    """Follows a tutorial: writes its files, runs its commands, compares the output."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.output = ""
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COLUMNS", "100")

    def follow(self, block: Block) -> None:
        if block.file is not None:
            path = Path(block.file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.language == "text":
            self.require_printed(block)
        elif block.treatment == "commands":
            self.output = "".join(self.run(command) for command in commands(block))
        else:
            assert block.not_run, f"{block.where}: unknown kind of block"

    def run(self, command: str) -> str:
        program, *rest = words_of(command)
        if program == "cd":
            self.monkeypatch.chdir(rest[0])
            return ""
        if program == "tidegate":
            result = CliRunner().invoke(app, rest)
            rejected = result.exit_code == 2 and "error[" in result.output
            assert result.exit_code == 0 or rejected, f"{command}\n{result.output}"
            return result.output
        assert program in HARMLESS, f"{command}: not allowed in tests"
        return subprocess.run(
            command, shell=True, check=True, capture_output=True, text=True
        ).stdout

    def require_printed(self, block: Block) -> None:
        """Require that every line of a block was printed in this order; … matches other lines."""
        rest = self.output
        for line in block.text.splitlines():
            if line.strip() and line.strip() != "…":
                assert line.rstrip() in rest, f"{block.where}: {line!r} is not in\n{self.output}"
                rest = rest.split(line.rstrip(), 1)[1]


@pytest.mark.parametrize("page", TUTORIALS)
def test_tutorial_works_as_documented(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    reader = TutorialReader(tmp_path, monkeypatch)
    steps = blocks_of(page)
    assert any(block.treatment == "commands" for block in steps)
    for block in steps:
        reader.follow(block)
