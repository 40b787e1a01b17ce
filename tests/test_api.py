"""What `import tidegate` offers: names, types that hold from outside, and reprs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import tidegate
from tidegate.errors import TITLES
from tidegate.session.results import Result
from tidegate.session.session import (
    INSERT_BATCH_ROWS,
    insert_async,
    insert_in_batches,
    is_row_iterator,
)
from tidegate.session.subscription import Batch, Subscription
from tidegate.storage import open_store

ROOT = Path(__file__).parents[1]


def test_everything_that_is_offered_is_there() -> None:
    assert dir(tidegate) == sorted(tidegate.__all__)
    for name in tidegate.__all__:
        thing = getattr(tidegate, name)
        assert name == "__version__" or thing.__doc__, f"{name} is documented"
    with pytest.raises(AttributeError):
        _ = tidegate.nothing
    errors = [getattr(tidegate, name) for name in tidegate.__all__ if name.endswith("Error")]
    assert all(issubclass(error, tidegate.TidegateError) for error in errors)
    assert TITLES


@pytest.mark.parametrize("program", ["program.py"])
def test_a_program_is_type_checked_from_outside(program: str, tmp_path: Path) -> None:
    file = tmp_path / program
    file.write_text((ROOT / "tests" / "typing" / program).read_text())
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import tidegate\n\n\ndef f(db: tidegate.Session) -> str:\n    return db.wait()\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    command += ["--cache-dir", str(ROOT / ".mypy_cache"), str(file), str(wrong)]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    found = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(found) == 1 and "wrong.py:5" in found[0], done.stdout + done.stderr


def test_things_say_what_they_are(tmp_path: Path) -> None:
    batch = Batch(3, pa.table({"a": [1, 2], "b": ["x", "<i>"]}))
    assert repr(batch) == "<tidegate.Batch of epoch 3: 2 rows of a, b>"
    assert len(batch) == 2 and list(batch) == batch.to_pylist()
    assert batch.to_pandas().shape == (2, 2) and batch.to_polars().shape == (2, 2)
    assert "&lt;i&gt;" in batch._repr_html_()
    subscription = Subscription(open_store(str(tmp_path)), name="s")
    assert repr(subscription) == "<tidegate.Subscription to s, next: epoch 0>"
    result = Result("streams", ("name", "description"), [("a", "append stream")])
    assert str(result) == "name\tdescription\na\tappend stream"
    assert result.to_pandas().to_dict("records") == result.to_pylist()
    assert "<td>append stream</td>" in result._repr_html_()
    assert Result.from_text("a < b")._repr_html_() == "<pre>a &lt; b</pre>"
    with tidegate.open(tmp_path / "data") as db:
        assert repr(db) == f"<tidegate.Session '{tmp_path}/data', stopped: nothing declared>"
    assert "closed" in repr(db)


def test_waiting_for_rows_ends_after_the_timeout(tmp_path: Path) -> None:
    """Nothing comes, and the stream is alive for ever."""
    endless = Subscription(open_store(str(tmp_path)), may_emit=lambda: True, timeout=0.05)
    assert list(endless) == []


def test_iterators_are_inserted_part_by_part() -> None:
    parts: list[int] = []

    def insert(rows: list[int]) -> int:
        parts.append(len(rows))
        return len(rows)

    assert (
        insert_in_batches(iter(range(2 * INSERT_BATCH_ROWS + 1)), insert)
        == 2 * INSERT_BATCH_ROWS + 1
    )
    assert parts == [INSERT_BATCH_ROWS, INSERT_BATCH_ROWS, 1]
    assert is_row_iterator(iter([])) and not is_row_iterator([]) and not is_row_iterator(({},))


def test_async_iterators_are_awaited() -> None:
    import asyncio
    from collections.abc import AsyncIterator

    async def rows() -> AsyncIterator[int]:
        for number in range(5):
            yield number

    parts: list[list[int]] = []
    done = asyncio.run(
        insert_async(rows(), lambda part: parts.append(part) or len(part), batch_rows=2)
    )
    assert done == 5 and parts == [[0, 1], [2, 3], [4]]
