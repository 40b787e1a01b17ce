"""Faults on Spark: dying tasks, damaged state, full and read-only disks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.support.event_time import START, row
from tests.support.sessions import bag, open_with, play, rows_of
from tidegate.errors import DataDirectoryError, TidegateError
from tidegate.runtime.pipeline import Pipeline

pytestmark = pytest.mark.spark

SCRIPT = (
    "CREATE SOURCE s (k STRING, v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) "
    "WITH (connector = 'memory', inserts_per_epoch = 1);"
    "CREATE STREAM w AS SELECT k, window_end, sum(v) AS total FROM s "
    "GROUP BY k, TUMBLE(ts, INTERVAL '10' SECOND);"
)


FIRST = [row(k, n, n) for n in range(8) for k in "abc"]
SECOND = [row(k, 10 + n, 9 + n) for n in range(8) for k in "abc"]


def totals(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Return the sums of all windows of rows."""
    sums: dict[tuple[str, int], int] = {}
    for item in rows:
        end = (int((item["ts"] - START).total_seconds()) // 10 + 1) * 10
        sums[item["k"], end] = sums.get((item["k"], end), 0) + item["v"]
    return sorted((k, end, total) for (k, end), total in sums.items())


def window_totals(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    seconds = [int((r["window_end"] - START).total_seconds()) for r in rows]
    return sorted((r["k"], end, r["total"]) for r, end in zip(rows, seconds, strict=True))


def run_to_input_end(data: Path, spark: Any) -> list[tuple[str, int, int]]:
    with open_with(data, spark, SCRIPT, key_groups=4) as session:
        out = session.subscribe("w")
        session.start(until_end=True)
        session.wait()
        return window_totals(rows_of(out.take_all()))


def run_first_epoch(data: Path, spark: Any) -> None:
    with open_with(data, spark, SCRIPT, key_groups=4) as session:
        session.subscribe("w")
        session.start()
        play(session, {"s": FIRST})
        session.stop()
        session.insert("s", SECOND)


# Tasks


def test_killed_worker_is_replaced_without_changing_rows(
    spark: Any, data: Path, tmp_path: Path
) -> None:
    """The function of a stream kills its Python worker once."""
    flag = tmp_path / "dead"

    def deadly(value: int) -> int:
        try:
            flag.touch(exist_ok=False)
        except FileExistsError:
            return value
        os._exit(1)

    spark.udf.register("deadly", deadly, "bigint")
    script = SCRIPT.replace("sum(v)", "sum(deadly(v))")
    with tidegate.open(data, spark=spark, config={"key_groups": 4}) as session:
        session.execute(script)
        out = session.subscribe("w")
        session.insert("s", FIRST)
        session.insert("s", SECOND)
        session.start(until_end=True)
        session.wait()
        assert flag.exists()
        assert window_totals(rows_of(out.take_all())) == totals(FIRST + SECOND)


# State


def state_files(data: Path) -> list[Path]:
    return sorted((data / "_pipelines" / "main" / "state").glob("*"))


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
def test_damaged_state_is_one_error_and_a_backup_continues(
    spark: Any, data: Path, damage: str
) -> None:
    run_first_epoch(data, spark)
    whole = {file: file.read_bytes() for file in state_files(data)}
    for file, content in whole.items():
        middle = len(content) // 2
        file.unlink()
        if damage == "flipped":
            # Change every byte in the middle third, to hit an entry.
            third = len(content) // 3
            hurt = bytes(byte ^ 1 for byte in content[third : 2 * third])
            file.write_bytes(content[:third] + hurt + content[2 * third :])
        elif damage == "truncated":
            file.write_bytes(content[:middle])
    with open_with(data, spark, SCRIPT, key_groups=4) as session:
        out = session.subscribe("w")
        with pytest.raises(TidegateError) as caught:
            session.start(until_end=True)
            session.wait()
        assert caught.value.code == "TG-605", caught.value
        place = "the state of the stream w" if damage == "flipped" else "manifests/"
        assert place in caught.value.message
        assert "from a backup" in (caught.value.hint or "")
        assert rows_of(out.take_all()) == []
    for file, content in whole.items():
        file.unlink(missing_ok=True)
        file.write_bytes(content)
    assert run_to_input_end(data, spark) == totals(FIRST + SECOND)


# Two processes on one directory


def test_data_directory_is_opened_by_one_process(spark: Any, data: Path) -> None:
    with (
        open_with(data, spark, SCRIPT),
        pytest.raises(DataDirectoryError) as caught,
    ):
        tidegate.open(data, spark=spark)
    assert caught.value.code == "TG-602" and str(os.getpid()) in caught.value.message


def test_zombie_driver_stops_without_losing_rows(spark: Any, data: Path) -> None:
    """Two drivers write to one store, as if the lock of the directory did not work."""
    run_first_epoch(data, spark)
    with open_with(data, spark, SCRIPT, key_groups=4) as session:
        out = session.subscribe("w")
        session.start()
        session.wait()
        (running,) = session._supervisor._pipelines.values()
        assert isinstance(running, Pipeline)
        zombie = Pipeline(running.context, running.name)
        zombie.start(list(running.streams.values()), False)
        zombie.wait(60)
        later = [row(k, 5, 30 + n) for n in range(3) for k in "ab"]
        session.insert("s", later)
        # Both see the rows; only one of them can commit the epoch.
        for pipeline in (zombie, running):
            pipeline.wake()
        codes = []
        for pipeline in (zombie, running):
            try:
                pipeline.wait(60)
            except TidegateError as error:
                codes.append(error.code)
        assert codes == ["TG-602"]
        zombie.stop()
        out.close()
    assert run_to_input_end(data, spark) == totals(FIRST + SECOND + later)


# Disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 2 MB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a disk cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("full", ["data", "sink"])
def test_full_disk_is_one_error_and_the_stream_continues_with_free_space(
    spark: Any, data: Path, tmp_path: Path, small_disk: Path, full: str
) -> None:
    place = small_disk / "data" if full == "data" else data
    target = small_disk / "out" if full == "sink" else tmp_path / "out"
    script = SCRIPT + (
        f"CREATE SINK written FROM w WITH (connector = 'files', path = '{target}', "
        "format = 'json');"
    )
    with open_with(place, spark, script, key_groups=4) as session:
        session.start()
        play(session, {"s": FIRST})
        session.stop()
        session.insert("s", SECOND)
        filler = small_disk / "filler"
        with (
            filler.open("wb", buffering=0) as file,
            pytest.raises(OSError, match="No space left"),
        ):
            while True:
                file.write(bytes(1024))
        with pytest.raises(TidegateError) as caught:
            session.start(until_end=True)
            session.wait()
        assert "No space left on device" in caught.value.message
        session.stop()
        filler.unlink()
        session.start(until_end=True)
        session.wait()
    frame = spark.read.schema("k STRING, window_end TIMESTAMP, total BIGINT").json(str(target))
    rows = [r.asDict() for r in frame.collect()]
    rows = [{**r, "window_end": r["window_end"].replace(tzinfo=UTC)} for r in rows]
    assert window_totals(rows) == totals(FIRST + SECOND)


def test_read_only_target_is_rejected_before_the_start(
    spark: Any, data: Path, small_disk: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    script = SCRIPT + (
        f"CREATE SINK written FROM w WITH (connector = 'files', path = '{small_disk}/out');"
    )
    with open_with(data, spark, script) as session:
        session.insert("s", FIRST)
        with pytest.raises(TidegateError) as caught:
            session.start(until_end=True)
        assert caught.value.code == "TG-529" and "Read-only" in caught.value.message
    with pytest.raises(DataDirectoryError) as rejected:
        tidegate.open(small_disk / "data", spark=spark)
    assert rejected.value.code == "TG-601" and "Read-only" in rejected.value.message


# The same rows in all sinks


def test_random_numbers_agree_in_all_sinks_after_a_failed_commit(
    spark: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.connectors.files.sink import FilesSink

    script = SCRIPT.split("CREATE STREAM")[0] + (
        "CREATE STREAM dice AS SELECT k, v, rand() AS r FROM s;"
        f"CREATE SINK one FROM dice WITH (connector = 'files', path = '{tmp_path}/one');"
        f"CREATE SINK two FROM dice WITH (connector = 'files', path = '{tmp_path}/two');"
    )
    publish = FilesSink.publish

    def dies(self: FilesSink, *args: Any) -> None:
        if self.context.sink.name == "two" and args[0].epoch == 1:
            raise KeyboardInterrupt
        publish(self, *args)

    with open_with(data, spark, script) as session:
        session.insert("s", FIRST)
        session.insert("s", SECOND)
        monkeypatch.setattr(FilesSink, "publish", dies)
        session.start(until_end=True)
        with pytest.raises(TidegateError):
            session.wait()
        monkeypatch.undo()
        assert not list((tmp_path / "two").glob("*-000000000001-*"))
        session.stop()
        session.start(until_end=True)
        session.wait()
    first, second = (spark.read.parquet(f"{tmp_path}/{name}") for name in ("one", "two"))
    assert bag(first.toArrow().to_pylist()) == bag(second.toArrow().to_pylist())
    assert first.count() == len(FIRST + SECOND)
