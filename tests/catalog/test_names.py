"""Names of objects as directories: names that leave the data directory, or clash, are rejected."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tidegate.catalog.catalog import LOCK, name_problem
from tidegate.runtime.directory import DataDirectory


@pytest.mark.parametrize(
    "name",
    [
        *("..", ".", "../../x", "a/b", "/etc", "a\\b", "_sources", ".git", LOCK, "SPARK.LOG"),
        *("", " ", "a ", " a", "a.", "a\n", "a\x00", "a\x7f", "a:b", "a*", "a{b}", "~a"),
        *("a" * 101, "ä" * 51),
    ],
)
def test_rejects_unsafe_name(name: str) -> None:
    assert name_problem(name) is not None


@pytest.mark.parametrize(
    "name", ["bids", "Per_Minute", "a-b", "a.b", "my stream", "größe", "窗", "1"]
)
def test_accepts_safe_name(name: str) -> None:
    assert name_problem(name) is None


@given(some.text(max_size=120))
def test_directory_of_safe_name_is_inside_the_data_directory(name: str) -> None:
    directory = DataDirectory("somewhere")
    if name_problem(name) is None:
        assert directory.stream(name).local_path().resolve().parent == directory.path
        assert directory.pipeline(name).local_path().resolve().parent.parent == directory.path
        assert directory.source(name).local_path().resolve().parent.parent == directory.path
    else:
        with pytest.raises(AssertionError):
            directory.stream(name)
        with pytest.raises(AssertionError):
            directory.pipeline(name)
        with pytest.raises(AssertionError):
            directory.source(name)


@given(some.text(alphabet=some.characters(categories=["L", "N"]), min_size=1, max_size=40))
def test_letters_and_digits_are_safe_up_to_100_bytes(name: str) -> None:
    too_long = len(name.lower().encode("utf-8")) > 100
    assert (name_problem(name) is not None) == too_long


def test_creates_directory_for_safe_name(tmp_path: Path) -> None:
    path = DataDirectory(tmp_path).stream("Größe 1").local_path()
    path.mkdir()
    assert path.parent == tmp_path
