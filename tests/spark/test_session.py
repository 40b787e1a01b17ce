"""The SparkSession: Java, a session of the user's, a quiet terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

import tidegate
from tests.spark.helpers import open_with, rows_of
from tidegate.errors import RunError
from tidegate.spark.spark_session import require_java

pytestmark = pytest.mark.spark


def test_a_missing_or_old_java_is_one_clear_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(RunError) as caught:
        require_java()
    assert caught.value.code == "TG-502"
    assert "needs Java 17 or newer, and there is none" in caught.value.message
    java = tmp_path / "old" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_292\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(RunError) as caught:
        require_java()
    assert "is Java 8" in caught.value.message


def test_a_session_of_the_users_lends_its_functions_and_keeps_its_settings(
    spark: Any, data: Path
) -> None:
    users = spark.newSession()
    users.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    users.udf.register("twice", lambda value: value * 2, "bigint")
    script = (
        "CREATE SOURCE s (id BIGINT) WITH (connector = 'memory');"
        "CREATE STREAM t AS SELECT twice(id) AS id FROM s;"
    )
    with open_with(data, users, script) as session:
        out = session.subscribe("t")
        session.insert("s", [{"id": 21}])
        session.start(until_end=True)
        session.wait()
        assert rows_of(out.take_all()) == [{"id": 42}]
    assert users.conf.get("spark.sql.session.timeZone") == "Europe/Berlin"
    with tidegate.open(data, spark=spark) as session, pytest.raises(tidegate.ScriptError) as caught:
        session.execute(script)
    assert caught.value.code == "TG-303"


def test_a_run_leaves_nothing_of_sparks_in_the_terminal(data: Path) -> None:
    program = (
        "import tidegate\n"
        f"with tidegate.open({str(data)!r}) as db:\n"
        "    db.execute(\"CREATE SOURCE g WITH (connector = 'generator', kind = 'series', rows = 5);"
        "CREATE STREAM s AS SELECT n FROM g; CREATE SINK c FROM s WITH (connector = 'console');\")\n"
        "    db.start(until_end=True)\n"
        "    db.wait()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stderr == ""
    assert run.stdout.splitlines()[0] == "-- s, epoch 0"
    assert len(run.stdout.splitlines()) == 6
