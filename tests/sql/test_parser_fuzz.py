"""The compiler never raises: for any text it returns statements and errors with locations."""

from __future__ import annotations

import re

from hypothesis import example, given, settings
from hypothesis import strategies as some

from benchmarks import nexmark
from tests.support.compiling import TESTS, compile_text
from tidegate.sql.parser import parse_script

SCRIPTS = [path.read_text("utf-8") for path in sorted(TESTS.glob("plan/plans/*.sql"))]
SCRIPTS += [path.read_text("utf-8") for path in sorted(TESTS.glob("compile/rejections/*.sql"))]
SCRIPTS += [nexmark.query(name) for name in nexmark.names()]
PIECES = [re.findall(r"\s+|\w+|'[^']*'|.", script) for script in SCRIPTS]
WORDS = sorted({piece for pieces in PIECES for piece in pieces if not piece.isspace()})


@some.composite
def mutated_scripts(draw: some.DrawFn) -> str:
    """Draw a valid script, and delete, replace, add or cut off some of its words."""
    pieces = list(draw(some.sampled_from(PIECES)))
    for _ in range(draw(some.integers(1, 4))):
        index = draw(some.integers(0, max(len(pieces) - 1, 0)))
        change = draw(some.sampled_from(["delete", "replace", "add", "cut"]))
        word = draw(some.sampled_from(WORDS))
        if change == "delete":
            del pieces[index : index + 1]
        elif change == "replace":
            pieces[index : index + 1] = [word]
        elif change == "add":
            pieces.insert(index, f" {word} ")
        else:
            del pieces[index:]
    return "".join(pieces)


def check_compiles_or_reports(text: str) -> None:
    """Assert that compiling does not raise, and that errors have valid locations."""
    script = parse_script(text)
    assert len(script.text) == len(text)
    compiled = compile_text(text)
    for error in (*compiled.errors, *compiled.warnings):
        assert error.location is not None
        assert 0 <= error.location.start <= error.location.end
        assert error.render()


@given(some.text())
@example("'")
@example("CREATE STREAM s AS SELECT")
@example("CREATE SOURCE s (")
@example("EMIT")
@example("SELECT " + "(" * 500)
@example("CREATE STREAM s AS SELECT " + "(" * 300 + "1" + ")" * 300 + " AS x")
@example("CREATE STREAM s AS SELECT " + " + ".join(["1"] * 2000) + " AS x")
@settings(max_examples=150, deadline=None)
def test_arbitrary_text_never_raises(text: str) -> None:
    check_compiles_or_reports(text)


@given(some.lists(some.sampled_from(WORDS), max_size=30))
@settings(max_examples=150, deadline=None)
def test_arbitrary_words_never_raise(words: list[str]) -> None:
    check_compiles_or_reports(" ".join(words))
    check_compiles_or_reports("CREATE STREAM s AS SELECT " + " ".join(words))


@given(mutated_scripts())
@settings(max_examples=250, deadline=None)
def test_mutated_scripts_never_raise(text: str) -> None:
    check_compiles_or_reports(text)
