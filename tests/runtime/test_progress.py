"""Sources tell how much of their input is read, where they know it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.compiling import compile_text
from tidegate.catalog.objects import Source
from tidegate.catalog.settings import Settings
from tidegate.connectors.base import SourceContext
from tidegate.connectors.registry import SOURCES


def progress(script: str, folder: Path, **settings: Any) -> list[tuple[int, int] | None]:
    """What each cut of a source tells, up to the fourth."""
    (source,) = compile_text(script).catalog.of(Source)
    places = (str(folder / "data"), str(folder / "offsets"))
    opened = SOURCES[source.connector](SourceContext(source, *places, Settings.of(settings)))
    found: list[tuple[int, int] | None] = []
    input_range = opened.plan_range(None, 2)
    while input_range is not None and len(found) < 4:
        found.append(input_range.progress)
        input_range = opened.plan_range(input_range.offset, 2)
    return found


def test_files_by_their_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number, size in enumerate([1, 2, 3]):
        (folder / f"{number}.json").write_text('{"id": 1}\n' * size)
    script = (
        "CREATE SOURCE f (id BIGINT) WITH (connector = 'files', format = 'json', "
        f"path = '{folder}', files_per_epoch = 1);"
    )
    assert progress(script, tmp_path) == [(10, 50), (20, 30), (30, 0)]


def test_a_generator_by_its_events(tmp_path: Path) -> None:
    script = "CREATE SOURCE g WITH (connector = 'generator', kind = 'series'{});"
    ending = script.format(", rows = 25")
    assert progress(ending, tmp_path, rows_per_epoch=10) == [(10, 15), (10, 5), (5, 0)]
    assert progress(script.format(""), tmp_path, rows_per_epoch=10) == [None] * 4
