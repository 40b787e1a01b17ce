"""Local paths are rejected on a cluster, before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidegate
from tidegate.errors import RunError, ScriptError
from tidegate.runtime.directory import is_cluster

SCRIPT = """
CREATE SOURCE s (a BIGINT) WITH (connector = 'files', path = 'in');
CREATE STREAM t AS SELECT a FROM s;
CREATE SINK o FROM t WITH (connector = 'files', path = 's3://bucket/out');
CREATE SINK p FROM t WITH (connector = 'files', path = 'file:///out');
"""


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        (None, False),
        ("local[*]", False),
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", True),
        ("yarn", True),
        ("k8s://https://host", True),
    ],
)
def test_masters_that_are_clusters(master: str | None, expected: bool) -> None:
    assert is_cluster(master) is expected


def test_rejects_local_paths_on_a_cluster(tmp_path: Path) -> None:
    with (
        tidegate.open(tmp_path / "data", master="spark://nowhere:7077") as session,
        pytest.raises(ScriptError) as caught,
    ):
        session.execute(SCRIPT)
    data, source, sink = caught.value.errors
    assert (data.code, source.code, sink.code) == ("TG-601", "TG-207", "TG-207")
    assert "is on the disk of one machine, but tasks of a cluster run on others" in data.message
    assert source.message.startswith("the path of s ") and "'in'" in source.render()
    assert "^^^^" in source.render()
    assert sink.message.startswith("the path of p ")
    assert "SET shared_disk = true;" in str(data.hint)


def test_shared_disk_allows_local_paths_on_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next error is then that of starting Spark."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with (
        tidegate.open(tmp_path / "data", master="spark://nowhere:7077") as session,
        pytest.raises(RunError) as caught,
    ):
        session.execute("SET shared_disk = true;" + SCRIPT)
    assert caught.value.code in ("TG-502", "TG-506")
