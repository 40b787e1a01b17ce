"""The SparkSession: starting Java, sessions of users, terminal output."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

import tidegate
from tests.support.sessions import bag, open_with, rows_of, run_to_end
from tidegate.errors import RunError
from tidegate.spark.session import own_session, require_java

pytestmark = pytest.mark.spark


def test_missing_or_old_java_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(RunError) as caught:
        require_java()
    assert caught.value.code == "TG-502"
    assert "needs Java 17 or newer, and no Java was found" in caught.value.message
    java = tmp_path / "old" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_292\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(RunError) as caught:
        require_java()
    assert "is Java 8" in caught.value.message


def test_exit_of_java_during_the_start_is_one_clear_error(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\nexit 1\n")
    java.chmod(0o755)
    code = (
        "from pathlib import Path\nfrom tidegate.spark.session import own_session\n"
        f"own_session('local[1]', Path({str(tmp_path / 'spark.log')!r}))"
    )
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "TG-502" in ended.stderr and "Java ended before Spark had started" in ended.stderr
    assert f"see {tmp_path / 'spark.log'}" in ended.stderr


def test_ctrl_c_handler_is_kept(spark: Any) -> None:
    """Spark's handler would cancel the job of an epoch and print its progress."""
    handler = signal.getsignal(signal.SIGINT)
    assert getattr(handler, "__module__", None) != "pyspark.core.context"


def test_session_of_the_user_shares_functions_and_keeps_its_settings(
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


# Settings that change the meaning of SQL, the encoding of rows, or the execution of a query.
ODD = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.caseSensitive": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.columnNameOfCorruptRecord": "n",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
}
QUERIES = """
CREATE SOURCE s (Id BIGINT, amount DECIMAL(38, 10), word STRING, at TIMESTAMP,
    WATERMARK FOR at AS at - INTERVAL '1' SECOND) WITH (connector = 'files', path = '{given}', format = 'json');
CREATE STREAM plain AS SELECT ID, amount * 1.0000000001 AS more, at, date_format(AT, 'yyyy-MM-dd HH') AS hour,
    to_timestamp('2026-01-01 00:30:00') AS moment, word RLIKE '^w\\\\d+$' AS fits FROM S;
CREATE STREAM sums AS SELECT word, window_start, count(*) AS n, sum(amount) AS total FROM s
    GROUP BY word, TUMBLE(at, INTERVAL '1' MINUTE);
CREATE STREAM bad AS SELECT CAST(word AS INT) AS number FROM s;
"""


def test_sessions_share_their_python_workers(spark: Any, tmp_path: Path) -> None:
    script = (
        "CREATE SOURCE s (id BIGINT) WITH (connector = 'memory'); INSERT INTO s VALUES (1);"
        "CREATE STREAM t AS SELECT id FROM s;"
    )
    users = spark.newSession()
    assert len(run_to_end(tmp_path / "first", users.newSession(), script, "t")) == 1
    before = _daemons()
    assert before
    for number in range(3):
        assert len(run_to_end(tmp_path / str(number), users.newSession(), script, "t")) == 1
    assert _daemons() <= before, (
        "a second daemon was started: it imports for a second and never ends"
    )


def _daemons() -> set[int]:
    """Return the daemons of Python workers: one for each environment of workers."""
    parents = _processes()
    jvm = {pid for pid, parent in parents.items() if parent == os.getpid()}
    return {pid for pid, parent in parents.items() if parent in jvm and _is_daemon(pid)}


def _processes() -> dict[int, int]:
    """Return the running processes and their parents."""
    parents = {}
    for item in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(item.parent.name)] = int(item.read_text().rpartition(")")[2].split()[1])
    return parents


def _is_daemon(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"tidegate.spark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_settings_of_a_session_change_neither_rows_nor_the_session(
    spark: Any, tmp_path: Path
) -> None:
    inputs = tmp_path / "in"
    inputs.mkdir()
    rows = (
        f'{{"Id": {n}, "amount": {n}.5, "word": "w{n % 3}", "at": "2026-01-01T00:{n // 2:02d}:00Z"}}'
        for n in range(100)
    )
    (inputs / "1.json").write_text("\n".join(rows))
    users = spark.newSession()
    for key, value in ODD.items():
        users.conf.set(key, value)
    users.range(3).createOrReplaceTempView("mine")
    before = dict(users.conf.getAll)
    results = []
    for name, session in (("odd", users), ("plain", spark)):
        script = QUERIES.format(given=inputs)
        with open_with(tmp_path / name, session, script) as opened:
            out = [opened.subscribe(stream) for stream in ("plain", "sums")]
            opened.start(until_end=True)
            opened.wait()
            results.append([bag(rows_of(item.take_all())) for item in out])
            opened.stop()
            opened.execute("CREATE SINK x FROM bad WITH (connector = 'blackhole')")
            opened.start(until_end=True)
            with pytest.raises(RunError, match="cannot be cast"):
                opened.wait()
    assert results[0] == results[1]
    assert [item.total() for item in results[0]] == [100, 100]
    assert dict(users.conf.getAll) == before
    assert [table.name for table in users.catalog.listTables()] == ["mine"]


CONNECT = """
import sys
from pyspark.sql import SparkSession
import tidegate

spark = SparkSession.builder.remote("local[1]").getOrCreate()
print(spark.range(3).count())
with tidegate.open(sys.argv[1], spark=spark) as session:
    try:
        session.execute("CREATE SOURCE s (a BIGINT) WITH (connector = 'memory')")
    except tidegate.RunError as error:
        print(error)
spark.stop()
"""


def test_spark_connect_is_rejected(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run(
        [sys.executable, "-c", CONNECT, str(data)], capture_output=True, text=True, check=True
    )
    rows, error, hint = run.stdout.splitlines()
    assert rows == "3"
    assert error.startswith("error[TG-501]: Tidegate does not run over Spark Connect")
    assert "SparkSession.builder.master(" in hint
    for master, remote in (("sc://localhost", None), (None, "sc://localhost")):
        if remote is not None:
            monkeypatch.setenv("SPARK_REMOTE", remote)
        with pytest.raises(RunError, match="does not run over Spark Connect"):
            own_session(master, data / "spark.log")


def test_other_master_than_the_running_spark_is_rejected(spark: Any, data: Path) -> None:
    with pytest.raises(RunError, match=r"this process already runs Spark, on local\[2\]"):
        own_session("spark://nowhere:7077", data)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        joined = own_session(None, data)
        assert joined.conf.get("spark.sql.session.timeZone") == "UTC"
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_run_prints_no_messages_of_spark(data: Path) -> None:
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
