"""The rows that LANGUAGE.md shows are those that come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.language import READ, Example, examples, value, word
from tests.spark.helpers import rows_of
from tidegate.catalog.objects import Source, Stream

pytestmark = pytest.mark.spark

EXAMPLES = examples()


def holding(text: str) -> Example:
    (found,) = [example for example in EXAMPLES if text in example.text]
    return found


def columns(session: Any, source: str) -> list[str]:
    declared = session.catalog.get(source)
    assert isinstance(declared, Source)
    return [column.name for column in declared.stored_columns]


def inserted(session: Any, source: str, rows: list[list[str]]) -> None:
    names = columns(session, source)
    session.insert(source, [dict(zip(names, map(value, row), strict=True)) for row in rows])


def as_shown(rows: list[dict[str, Any]], like: list[list[str]]) -> list[list[str]]:
    """Rows as words, as many of each as the page shows."""
    width = len(like[0]) if like else 0
    return [[word(item) for item in row.values()][:width] for row in rows]


def test_rows_of_the_examples_that_come_in_three_epochs(spark: Any, data: Path) -> None:
    """All examples over the bids of the page run in one pipeline."""
    given = holding("-- epoch 0:  (1, 10")
    queries = [
        e for e in EXAMPLES if e.language == "sql" and e is not given and "-- epoch" in e.text
    ]
    assert len(queries) >= 4
    late = holding("1  09:01:00  2  30  -U")
    python = holding("db.function(")
    with tidegate.open(data, spark=spark) as session:
        session.execute(given.sql)
        shown: dict[str, list[tuple[str, list[list[str]]]]] = {}
        for number, example in enumerate(queries):
            name = f"example_{number}"
            session.execute(example.sql.replace("STREAM example AS", f"STREAM {name} AS"))
            (stream,) = [s.name for s in session.catalog.of(Stream) if s.name not in shown]
            shown[stream] = example.shown()
        lateness = holding("max(price) AS top\nFROM bids GROUP BY auction, TUMBLE").sql
        lateness = lateness.replace("STREAM example", "STREAM again").replace(
            "WINDOW CLOSE", "WINDOW CLOSE ALLOW LATENESS INTERVAL '1' MINUTE"
        )
        session.execute(lateness)
        shown["again"] = late.shown()
        file = data.parent / "example.py"
        file.write_text(python.text)
        exec(compile(python.text, str(file), "exec"), {"db": session})
        readers = {name: session.subscribe(name) for name in [*shown, "labels"]}
        session.start()
        for label, rows in given.shown():
            assert label.startswith("epoch")
            inserted(session, "bids", rows)
            session.wait()
        for name, told in shown.items():
            by_epoch = {batch.epoch: rows_of([batch]) for batch in readers[name].take_all()}
            assert told, f"{name} shows rows"
            for label, rows in told:
                came = by_epoch.get(int(label.removeprefix("epoch ")), [])
                wide = len(came[0]) if came else 0
                expected = [row[:wide] for row in rows]
                assert sorted(as_shown(came, expected)) == sorted(expected), (name, label)
        assert [row["label"] for row in rows_of(readers["labels"].take_all())] == [
            "1: 60",
            "1: 180",
        ]


@pytest.mark.parametrize("text", ["-- rates:", "-- quotes:", "-- in:  1 new"])
def test_rows_of_the_examples_with_inputs_of_their_own(spark: Any, data: Path, text: str) -> None:
    example = holding(text)
    with tidegate.open(data, spark=spark) as session:
        session.execute(example.sql)
        (stream,) = session.catalog.of(Stream)
        (source, *_) = [item.name for item in session.catalog.of(Source)]
        reader = session.subscribe(stream.name)
        session.start()
        for label, rows in example.shown():
            if label != "out":
                inserted(session, source if label == "in" else label, rows)
                continue
            if text != "-- in:  1 new":
                session.stop()
                session.start(until_end=True)
            session.wait()
            came = rows_of(reader.take_all())
            assert sorted(as_shown(came, rows)) == sorted(rows)


def test_what_the_examples_read_is_only_what_they_need() -> None:
    read = {name for example in EXAMPLES for name in READ if name in example.text}
    assert read == set(READ)
