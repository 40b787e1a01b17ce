"""on_error = 'dead_letter': rows on which an expression fails become dead letters, and the stream continues."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.support.sessions import rows_of
from tidegate.runtime import epoch as cutting

pytestmark = pytest.mark.spark

SCRIPT = """
CREATE SOURCE s (id BIGINT, word STRING, part BIGINT, at TIMESTAMP, WATERMARK FOR at AS at)
    WITH (connector = 'memory');
CREATE STREAM numbers WITH (on_error = 'dead_letter', dead_letters = 'no_numbers') AS
    SELECT id, CAST(word AS INT) AS number, CAST(word AS INT) + 1 AS next, at FROM s
    WHERE 12 / part > 1;
CREATE STREAM sums WITH (on_error = 'dead_letter', dead_letters = 'bad_sums') AS
    SELECT window_start, sum(CAST(word AS INT)) AS total, 100 / sum(part) AS share FROM s
    GROUP BY TUMBLE(at, INTERVAL '1' MINUTE);
CREATE STREAM of_numbers WITH (on_error = 'dead_letter', dead_letters = 'bad_pairs') AS
    SELECT a.id, b.id AS other FROM numbers AS a JOIN s AS b
    ON a.number = CAST(b.word AS INT) AND a.at = b.at;
CREATE STREAM latest WITH (on_error = 'dead_letter') AS
    SELECT part, 60 / sum(id) AS inverse FROM s GROUP BY part EMIT ON UPDATE;
CREATE SINK letters FROM no_numbers WITH (connector = 'files', path = '{out}', format = 'json');
"""
# id, word, part, minute
FIRST = [(1, "10", 2, 0), (2, "x", 2, 0), (3, "7", 0, 0), (4, "8", 3, 0), (5, None, 5, 1)]
SECOND = [(-1, "10", 2, 1), (-2, "y", 2, 1), (-5, "20", -5, 1), (9, "1", 9, 2), (9, "1", 20, 2)]


def _rows(rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [{"id": i, "word": w, "part": p, "at": f"2026-01-01T00:0{m}:00Z"} for i, w, p, m in rows]


def _run(path: Path, spark: Any, vectors: str) -> dict[str, Any]:
    """Run twice, the second time to the end; return the rows of all streams and the counts of status."""
    results: dict[str, Any] = {}
    for rows in (FIRST, SECOND):
        with tidegate.open(path / "data", spark=spark, config={"vectorized": vectors}) as db:
            db.execute(SCRIPT.format(out=path / "out"))
            names = ("numbers", "sums", "of_numbers", "latest", "bad_sums", "bad_pairs")
            readers = {name: db.subscribe(name) for name in names}
            db.insert("s", _rows(rows))
            last = rows is SECOND
            db.start(until_end=last, available_now=not last)
            db.wait()
            results |= {name: rows_of(stream.take_all()) for name, stream in readers.items()}
            for status in db.status():
                key = f"dead {status.name}"
                results[key] = results.get(key, 0) + status.dead_letters
    files = (path / "out").glob("*.json")
    results["letters"] = [json.loads(line) for f in files for line in f.read_text().splitlines()]
    return results


@pytest.mark.parametrize("vectors", ["on", "off"])
def test_failing_rows_are_dead_letters_and_others_are_emitted(
    spark: Any, tmp_path: Path, vectors: str
) -> None:
    results = _run(tmp_path, spark, vectors)
    numbers = [(row["id"], row["number"], row["next"]) for row in results["numbers"]]
    assert Counter(numbers) == Counter(
        [(1, 10, 11), (4, 8, 9), (5, None, None), (-1, 10, 11), (9, 1, 2)]
    )
    # Dropped rows cannot fail above the filter; 12 / -5 is not above 1.
    letters = Counter(
        (letter["expression"], json.loads(letter["record"])["id"]) for letter in results["letters"]
    )
    assert letters == Counter(
        {("CAST(word AS INT)", 2): 1, ("12 / part > 1", 3): 1, ("CAST(word AS INT)", -2): 1}
    )
    assert {letter["stream"] for letter in results["letters"]} == {"numbers"}
    assert results["dead numbers"] == 3

    sums = {row["window_start"].minute: (row["total"], row["share"]) for row in results["sums"]}
    # Minute 1 has parts 5, 2 and -5: the row of y failed, and the remaining share is 100 / 2.
    assert sums == {0: (25, 100 / 5), 1: (30, 100 / 2), 2: (2, 100 / 29)}
    words = Counter(json.loads(row["record"])["word"] for row in results["bad_sums"])
    assert words == Counter(["x", "y"])

    pairs = {(row["id"], row["other"]) for row in results["of_numbers"]}
    assert pairs == {(1, 1), (4, 4), (-1, -1), (9, 9)}
    assert {r["stream"] for r in results["bad_pairs"]} == {"of_numbers"}

    # For part 2 the sum was 1 + 2, and then 3 - 1 - 2: its old result is retracted.
    last_changes = {}
    for row in results["latest"]:
        last_changes[row["part"]] = row
    assert last_changes[2]["_op"] == "-D"
    assert last_changes[9]["inverse"] == pytest.approx(60 / 9)
    assert results["dead latest"] >= 1


def test_stream_without_dead_letters_stops(spark: Any, tmp_path: Path) -> None:
    with tidegate.open(tmp_path, spark=spark) as db:
        db.execute(
            "CREATE SOURCE s (word STRING) WITH (connector = 'memory');"
            "CREATE STREAM t AS SELECT CAST(word AS INT) AS n FROM s;"
        )
        db.subscribe("t")
        db.insert("s", [{"word": "x"}])
        with pytest.raises(tidegate.TidegateError) as caught:
            db.start(until_end=True)
            db.wait()
    assert caught.value.code == "TG-503"
    assert "dead_letter" in (caught.value.hint or "")


def test_dead_letters_can_be_queried(spark: Any, tmp_path: Path) -> None:
    with tidegate.open(tmp_path, spark=spark) as db:
        db.execute(
            "CREATE SOURCE s (word STRING) WITH (connector = 'memory');"
            "CREATE STREAM t WITH (on_error = 'dead_letter', dead_letters = 'bad') AS "
            "SELECT word, CAST(word AS INT) AS n FROM s;"
            "CREATE SINK kept FROM bad WITH (connector = 'memory');"
            "CREATE SINK fine FROM t WITH (connector = 'memory');"
        )
        db.insert("s", [{"word": "x"}, {"word": "2"}])
        db.start(available_now=True)
        db.wait()
        bad = db.query("SELECT record FROM bad").to_pylist()
        assert bad == [{"record": '{"word":"x"}'}]
        assert db.query("SELECT n FROM t").to_pylist() == [{"n": 2}]


def test_equal_dead_letters_are_counted_separately(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if Spark pre-aggregates groups, which merges equal rows."""
    monkeypatch.setattr(cutting, "_LARGE_BYTES", 0)
    with tidegate.open(tmp_path, spark=spark, config={"vectorized": "off"}) as db:
        db.execute(
            "CREATE SOURCE s (k INT, word STRING) WITH (connector = 'memory');"
            "CREATE STREAM t WITH (on_error = 'dead_letter', dead_letters = 'bad') AS "
            "SELECT k, sum(CAST(word AS INT)) AS n FROM s GROUP BY k EMIT CHANGES;"
        )
        bad, good = db.subscribe("bad"), db.subscribe("t")
        db.insert("s", [{"k": 1, "word": "x"}] * 3 + [{"k": 1, "word": "2"}] * 2)
        db.start(until_end=True)
        db.wait()
        assert len(rows_of(bad.take_all())) == 3
        assert [row["n"] for row in rows_of(good.take_all())] == [4]
        assert [status.dead_letters for status in db.status()] == [3]
