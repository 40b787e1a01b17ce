"""A files sink never deletes what it has committed, and names its files for good."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from tests.compiling import compile_text
from tidegate.catalog.objects import Sink
from tidegate.connectors.files import FilesWriter, _short_name
from tidegate.errors import RunError
from tidegate.runtime.connector import SinkContext

UUID = "0b5b1c7e-7b1c-4d3e-9a51-2f6a9f0c1d2e"


def writer(path: Path) -> FilesWriter:
    compiled = compile_text(
        "CREATE SOURCE s (a INT) WITH (connector = 'memory'); CREATE STREAM t AS SELECT a FROM s;"
        f"CREATE SINK out FROM t WITH (connector = 'files', path = '{path}');"
    )
    sink = compiled.catalog.get("out")
    assert isinstance(sink, Sink)
    return FilesWriter(cast(Any, None), SinkContext(sink, path, "1234", lambda *_: None))


def put(path: Path, *epochs: int) -> list[str]:
    for epoch in epochs:
        (path / f"1234-out-{epoch:012d}-00000-c000.parquet").write_bytes(b"rows")
    return names(path)


def names(path: Path) -> list[str]:
    return sorted(item.name for item in path.glob("*.parquet"))


def test_a_lost_marker_is_an_error_and_nothing_is_deleted(tmp_path: Path) -> None:
    writer(tmp_path).prepare()
    there = put(tmp_path, 0, 1)
    marker = tmp_path / "_tidegate" / "1234-out-" / "committed.json"
    assert json.loads(marker.read_text()) == {"epoch": -1}
    marker.unlink()
    with pytest.raises(RunError, match="is gone") as caught:
        writer(tmp_path).prepare()
    assert caught.value.code == "TG-504" and caught.value.hint
    assert names(tmp_path) == there


def test_a_pipeline_that_wrote_nothing_is_in_nobodys_way(tmp_path: Path) -> None:
    first = writer(tmp_path)
    first.prepare()
    other = writer(tmp_path)
    other.prefix, other.aside = "5678-out-", f"{tmp_path}/_tidegate/5678-out-"
    other.prepare()
    first._mark(0)
    with pytest.raises(RunError, match="an earlier pipeline"):
        other.prepare()


def test_an_older_marker_is_an_error_and_nothing_is_deleted(tmp_path: Path) -> None:
    writer(tmp_path).prepare()
    there = put(tmp_path, 0, 1, 2)
    with pytest.raises(RunError, match="says -1"):
        writer(tmp_path).prepare()
    assert names(tmp_path) == there


def test_an_epoch_that_died_while_it_was_renamed_is_removed(tmp_path: Path) -> None:
    made = writer(tmp_path)
    made.prepare()
    made._mark(4)
    put(tmp_path, 3, 4, 5)
    again = writer(tmp_path)
    again.prepare()
    assert again.committed() == 4
    assert [name.split("-")[2] for name in names(tmp_path)] == ["000000000003", "000000000004"]


@pytest.mark.parametrize("between", ["-", "."])
def test_names_are_made_of_task_and_number_only(between: str) -> None:
    """With partition_by Spark puts a dot where it puts a dash otherwise."""
    name = f"part-00003-{UUID}{between}c000.snappy.parquet"
    assert _short_name(name) == "00003-c000.snappy.parquet"
