"""Lookup tables on files, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.compiling import compile_text
from tidegate.catalog.objects import LookupTable
from tidegate.connectors.base import LookupContext
from tidegate.connectors.files.lookup import FileRows
from tidegate.errors import RunError


def opened(script: str | None, path: str) -> FileRows:
    compiled = compile_text(
        "CREATE LOOKUP TABLE t (id BIGINT, name STRING) "
        f"WITH (connector = 'files', path = '{path}', format = 'json');",
        script,
    )
    table = compiled.catalog.get("t")
    assert isinstance(table, LookupTable)
    return FileRows(LookupContext(table, "", ""))


def test_relative_path_is_relative_to_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for sources and sinks."""
    script = tmp_path / "scripts" / "shop.sql"
    (script.parent / "customers").mkdir(parents=True)
    (script.parent / "customers" / "a.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for file in (str(script), "scripts/shop.sql"):
        assert [name for name, _, _ in opened(file, "customers").version()] == ["a.json"]
        missing = script.parent if file == str(script) else Path("scripts")
        with pytest.raises(RunError, match="does not exist") as caught:
            opened(file, "nothing")
        assert f"mkdir -p {missing / 'nothing'}," in (caught.value.hint or "")
    # Without a script, the current directory counts; an absolute path is never changed.
    assert len(opened(None, "scripts/customers").version()) == 1
    assert len(opened("elsewhere/x.sql", str(script.parent / "customers")).version()) == 1
