"""Scripts whose declarations are valid, but in which a statement fails. Without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate.catalog.catalog import Catalog
from tidegate.errors import RunError
from tidegate.session.session import Session


def table(name: str) -> str:
    return f"CREATE LOOKUP TABLE {name} (id BIGINT) WITH (connector = 'memory');"


FAILS = "INSERT INTO a VALUES (1);"


@pytest.fixture(autouse=True)
def failing_insert(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RunError("TG-504", "the value does not fit")

    monkeypatch.setattr(Session, "_insert_statement", fail)


def saved_names(path: Path) -> list[str]:
    """Return what a new session of the shell declares."""
    with tidegate.open(path) as db:
        for _, script in db.load_declarations().scripts:
            db.execute(script)
        return db.catalog.names()


def test_declarations_before_a_failing_insert_are_saved_and_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[list[str]] = []

    def apply_changes(catalog: Catalog, settings: Any) -> None:
        applied.append(catalog.names())

    with tidegate.open(tmp_path) as db:
        monkeypatch.setattr(db._supervisor, "apply_changes", apply_changes)
        with pytest.raises(RunError, match="the value does not fit"):
            db.execute(f"{table('a')} {FAILS} {table('b')}")
        assert db.catalog.names() == ["a", "b"] and applied == [["a", "b"]]
    assert saved_names(tmp_path) == ["a", "b"]


def test_objects_are_dropped_only_by_executed_statements(tmp_path: Path) -> None:
    with tidegate.open(tmp_path) as db:
        db.execute("".join(map(table, "abcd")))
        with pytest.raises(RunError, match="the value does not fit"):
            db.execute(f"DROP LOOKUP TABLE d; {FAILS} DROP LOOKUP TABLE b; DROP LOOKUP TABLE c;")
        assert sorted(db.catalog.names()) == ["a", "b", "c"]
        db.execute("DROP LOOKUP TABLE b;")
    assert saved_names(tmp_path) == ["a", "c"]


def test_reused_name_is_the_new_object(tmp_path: Path) -> None:
    with tidegate.open(tmp_path) as db:
        db.execute(table("a") + table("b"))
        with pytest.raises(RunError, match="the value does not fit"):
            db.execute(
                f"{FAILS} DROP LOOKUP TABLE b; "
                "CREATE LOOKUP TABLE b (name STRING) WITH (connector = 'memory');"
            )
        declared = db.catalog.get("b")
        assert declared is not None and "name STRING" in declared.statement.text
    assert saved_names(tmp_path) == ["a", "b"]


def test_the_first_error_is_raised_if_streams_cannot_start_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RunError("TG-503", "it does not start")

    with tidegate.open(tmp_path) as db:
        monkeypatch.setattr(db._supervisor, "apply_changes", fail)
        with pytest.raises(RunError, match="the value does not fit"):
            db.execute(f"{table('a')} {FAILS}")
        assert [warning.message for warning in db.warnings] == ["it does not start"]
