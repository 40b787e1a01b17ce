"""Sources report how much of their input has been read, if they know it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.compiling import compile_text
from tidegate.catalog.objects import Source
from tidegate.catalog.settings import Settings
from tidegate.connectors.base import SourceContext
from tidegate.connectors.registry import SOURCES


def progress(script: str, folder: Path, **settings: Any) -> list[tuple[int, int] | None]:
    """Return the progress of the first input ranges of a source, four at most."""
    (source,) = compile_text(script).catalog.of_type(Source)
    folders = (str(folder / "data"), str(folder / "offsets"))
    connector = SOURCES[source.connector](
        SourceContext(source, *folders, Settings.from_config(settings))
    )
    fractions: list[tuple[int, int] | None] = []
    input_range = connector.plan_range(None, 2)
    while input_range is not None and len(fractions) < 4:
        fractions.append(input_range.progress)
        input_range = connector.plan_range(input_range.offset, 2)
    return fractions


def test_files_source_reports_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number, size in enumerate([1, 2, 3]):
        (folder / f"{number}.json").write_text('{"id": 1}\n' * size)
    script = (
        "CREATE SOURCE f (id BIGINT) WITH (connector = 'files', format = 'json', "
        f"path = '{folder}', files_per_epoch = 1);"
    )
    assert progress(script, tmp_path) == [(10, 50), (20, 30), (30, 0)]


def test_generator_reports_events(tmp_path: Path) -> None:
    script = "CREATE SOURCE g WITH (connector = 'generator', kind = 'series'{});"
    bounded = script.format(", rows = 25")
    assert progress(bounded, tmp_path, rows_per_epoch=10) == [(10, 15), (10, 5), (5, 0)]
    assert progress(script.format(""), tmp_path, rows_per_epoch=10) == [None] * 4
