"""On a cluster, files must be where all machines find them; that is known before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidegate
from tidegate.cli import init as package
from tidegate.errors import RunError, ScriptError
from tidegate.runtime.planning import is_cluster

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
def test_which_masters_have_other_machines(master: str | None, expected: bool) -> None:
    assert is_cluster(master) is expected


def test_paths_of_one_machine_are_rejected_on_a_cluster(tmp_path: Path) -> None:
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


def test_a_shared_disk_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then Spark is the next thing to be asked for."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with (
        tidegate.open(tmp_path / "data", master="spark://nowhere:7077") as session,
        pytest.raises(RunError) as caught,
    ):
        session.execute("SET shared_disk = true;" + SCRIPT)
    assert caught.value.code in ("TG-502", "TG-506")


def test_the_archive_is_the_package(tmp_path: Path) -> None:
    import zipfile

    one, two = tmp_path / "one.zip", tmp_path / "two.zip"
    assert (package.package(one), package.package(two)) == (0, 0)
    assert one.read_bytes() == two.read_bytes()
    names = zipfile.ZipFile(one).namelist()
    assert {"tidegate/__init__.py", "tidegate/spark/tasks/step.py", "tidegate/py.typed"} <= set(
        names
    )
    assert not any("__pycache__" in name for name in names)
    with pytest.raises(RunError, match=r"end in \.zip"):
        package.package(tmp_path / "one.pex")
    with pytest.raises(RunError, match="cannot be written"):
        package.package(tmp_path / "nowhere" / "one.zip")
