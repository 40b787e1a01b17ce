"""INSERT in a script happens once per data directory; as a command, every time."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.lossy_disk import LossyDisk, PowerLost, lose_power
from tidegate.catalog.commands import insert_identity
from tidegate.connectors.memory.connector import Inserts
from tidegate.connectors.memory.rows import InsertReader
from tidegate.sql import statements as st
from tidegate.sql.parser import parse_script
from tidegate.storage import local as disk

SOURCE = "CREATE SOURCE s (a BIGINT, b STRING) WITH (connector = 'memory');"


def identities(text: str) -> list[str | None]:
    script = parse_script(text, None, frozenset())
    assert not script.errors
    inserts = [item for item in script.statements if isinstance(item, st.Insert)]
    return [insert_identity(item, script) for item in inserts]


def test_identity_of_an_insert_depends_on_its_text() -> None:
    first, second = identities(
        f"{SOURCE} INSERT INTO s VALUES (1, 'x'); INSERT INTO s VALUES (2, 'x');"
    )
    assert first is not None and second is not None and first != second
    for same in (
        "insert into S\n  values (1 , 'x')",
        "INSERT /* one */ INTO s -- row\n VALUES (1,'x')",
        "INSERT INTO other VALUES (2, 'x'); INSERT INTO s VALUES (1, 'x')",
    ):
        text = f"CREATE SOURCE other (a BIGINT, b STRING) WITH (connector = 'memory'); {SOURCE}"
        assert first in identities(f"{text} {same};")
    for another in ("VALUES (1, 'X')", "VALUES (1, ' x')", "(a, b) VALUES (1, 'x')"):
        assert identities(f"{SOURCE} INSERT INTO s {another};")[0] not in (first, second)


def test_same_text_twice_has_two_identities() -> None:
    insert = "INSERT INTO s VALUES (1, 'x');"
    once, twice = identities(SOURCE + insert), identities(SOURCE + insert + insert.lower())
    assert twice[0] == once[0] and twice[1] != once[0]
    # The position of the source declaration and other statements do not matter.
    assert identities(insert + "SHOW SOURCES;" + insert + SOURCE) == twice


def test_insert_without_its_source_declaration_has_no_identity() -> None:
    assert identities("INSERT INTO s VALUES (1, 'x');") == [None]
    assert identities(f"{SOURCE} INSERT INTO other VALUES (1, 'x');") == [None]


ROWS = pa.table({"a": [1, 2]})


def stored(inserts: Inserts) -> list[list[int]]:
    reader = InsertReader(inserts.store.uri, ROWS.schema, False)
    names = [item.name for item in inserts.store.list("rows")]
    return [[a for batch, _ in reader.read(n) for a in batch[0].to_pylist()] for n in names]


def test_finds_an_insert_by_its_identity(tmp_path: Path) -> None:
    inserts = Inserts(str(tmp_path))
    inserts.append(ROWS)
    assert not inserts.has_identity("x-0")
    inserts.append(ROWS, "x-0")
    inserts.append(ROWS)
    reopened = Inserts(str(tmp_path))
    assert (
        reopened.has_identity("x-0")
        and not reopened.has_identity("x-1")
        and stored(reopened) == [[1, 2]] * 3
    )


@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("others", [0, 1])
def test_insert_survives_a_crash_after_any_step_exactly_once(
    tmp_path: Path, loses: bool, others: int
) -> None:
    """After a crash or a power loss; others may take its number before it is retried."""
    steps, died = 0, True
    while died:
        path, journal = tmp_path / str(steps), tmp_path / "journal"
        Inserts(str(path)).append(ROWS, "other-0")
        before = disk.use_disk(LossyDisk(journal, steps))
        try:
            Inserts(str(path)).append(ROWS, "x-0")
            died = False
        except PowerLost:
            pass
        finally:
            disk.use_disk(before)
        if loses:
            lose_power(journal)
        for _ in range(2):
            reopened = Inserts(str(path))
            for _ in range(others):
                reopened.append(pa.table({"a": [9]}))
            if not reopened.has_identity("x-0"):
                reopened.append(ROWS, "x-0")
        assert stored(Inserts(str(path))).count([1, 2]) == 2, f"after {steps} steps"
        steps += 1
    assert steps > 10
