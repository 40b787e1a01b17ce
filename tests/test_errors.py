"""The table of error codes, places and how errors are shown."""

from __future__ import annotations

import re

import pytest

from tests.support.compiling import TESTS
from tidegate.errors import (
    TITLES,
    Location,
    ScriptError,
    SqlError,
    TidegateError,
    did_you_mean,
    nearest,
)

SOURCE = TESTS.parent / "tidegate"


def codes_in_the_source() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        if path.name == "errors.py" and path.parent == SOURCE:
            continue
        for code in re.findall(r"\bTG-\d{3}\b", path.read_text("utf-8")):
            found.setdefault(code, []).append(path.name)
    return found


def test_every_code_in_the_source_is_registered() -> None:
    unknown = {code: files for code, files in codes_in_the_source().items() if code not in TITLES}
    assert unknown == {}


def test_every_registered_code_is_used() -> None:
    assert set(TITLES) - set(codes_in_the_source()) == set()


def test_an_unregistered_code_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="TG-999"):
        TidegateError("TG-999", "never")


def test_place_knows_line_and_column() -> None:
    text = "SELECT a,\n\tb\nFROM t"
    place = Location(text, text.index("b"), text.index("b") + 1)
    assert (place.line, place.column) == (2, 2)
    first = Location(text, 0, 6)
    assert (first.line, first.column) == (1, 1)


def test_place_renders_the_line_with_a_caret() -> None:
    text = "SELECT a,\n\tbb\nFROM t"
    place = Location(text, text.index("bb"), text.index("bb") + 2, "q.sql")
    assert place.render() == "  --> q.sql:2:2\n   |\n 2 |  bb\n   |  ^^"


def test_place_widens_its_gutter_with_the_line_number() -> None:
    text = "\n" * 11 + "oops"
    assert Location(text, 11, 15).render() == "   --> sql:12:1\n    |\n 12 | oops\n    | ^^^^"


def test_place_over_several_lines_marks_the_first() -> None:
    text = "SELECT a\nFROM t"
    assert Location(text, 0, len(text)).render().splitlines()[-1] == "   | ^^^^^^^^"


def test_place_at_the_end_of_the_text_still_has_a_caret() -> None:
    assert Location("ab", 2, 2).render().splitlines()[-1] == "   |   ^"
    assert Location("", 0, 0).render().splitlines()[-1] == "   | ^"


def test_an_error_shows_code_message_place_plan_and_hint() -> None:
    error = SqlError(
        "TG-301",
        "there is no column x",
        location=Location("x", 0, 1),
        hint="y?",
        path="Filter → Source(t)",
    )
    assert str(error) == (
        "error[TG-301]: there is no column x\n  --> sql:1:1\n   |\n 1 | x\n   | ^\n"
        "   = plan: Filter → Source(t)\nHint: y?"
    )
    assert error.render("warning").startswith("warning[TG-301]")


def test_a_script_error_holds_all_and_behaves_like_the_first() -> None:
    both = ScriptError([SqlError("TG-301", "one"), SqlError("TG-302", "two")])
    assert (both.code, both.message) == ("TG-301", "one")
    assert str(both) == "error[TG-301]: one\n\nerror[TG-302]: two"


def test_the_nearest_name_is_found_whatever_its_case() -> None:
    assert nearest("BIDZ", ["bids", "asks"]) == "bids"
    assert nearest("zzz", ["bids", "asks"]) is None


def test_hints_name_the_nearest_or_list_what_exists() -> None:
    assert did_you_mean("prise", ["price", "ts"], "columns") == "did you mean price?"
    assert did_you_mean("zzz", ["price", "ts"], "columns") == "columns: price, ts"
    assert did_you_mean("zzz", [], "columns") == "there are no columns yet."
    many = [f"column_{index:02}" for index in range(20)]
    assert did_you_mean("zzz", many, "columns").endswith("column_11, …")
