"""Lines of text files are the same for any bytes, any splits and any block size."""

from __future__ import annotations

import bz2
import gzip
import re
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, RECORD_FILE, RECORD_LINE
from tidegate.connectors.formats import lines as text_lines
from tidegate.connectors.formats.lines import FIRST, TEXT_BYTES, TextReader
from tidegate.storage import open_store

EVENT_TIME = b"\xef\xbb\xbf"


class Line(NamedTuple):
    text: bytes
    number: int
    first: bool


def model(content: bytes, utf8: bool = True) -> list[Line]:
    """Split lines at \\n, \\r\\n or \\r; blank lines are counted but not returned."""
    if utf8:
        content = content.removeprefix(EVENT_TIME)
    lines = re.split(rb"\r\n|\n|\r", content)
    filled = [(text, number) for number, text in enumerate(lines, 1) if text.strip(b" \t")]
    return [Line(text, number, index == 0) for index, (text, number) in enumerate(filled)]


def reader(root: Path, utf8: bool = True, whole: bool = False, **more: Any) -> TextReader:
    return TextReader(str(root), whole, more.get("header", False), utf8)


def read(reading: TextReader, name: str, size: int, ranges: list[int]) -> list[Line]:
    bounds = [0, *sorted(offset for offset in set(ranges) if 0 < offset < size)]
    ends: list[int | None] = [*bounds[1:], None]
    result: list[Line] = []
    for start, end in zip(bounds, ends, strict=True):
        records = 0
        for batch, count in reading.read([name, 7, start, end]):
            assert batch.schema == reading.schema
            columns = [batch.column(n).to_pylist() for n in (TEXT_BYTES, RECORD_LINE, FIRST)]
            result += [Line(*row) for row in zip(*columns, strict=True)]
            records += count
            assert batch.column(ARRIVAL_ROW).equals(batch.column(RECORD_LINE))
    return result


pieces = st.sampled_from(
    [b"\n", b"\r\n", b"\r", b" ", b"\t", EVENT_TIME, b"a", b"bc", b"\x00", b"\xff"]
)
contents = st.lists(pieces, max_size=30).map(b"".join) | st.binary(max_size=60)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400)
@given(contents, st.lists(st.integers(0, 80), max_size=4), st.integers(1, 20), st.booleans())
@example(b"a\rb\nc", [4], 20, True)
@example(b"\n\n \nx\ny", [2], 20, True)
@example(EVENT_TIME + b"\nx", [4], 20, True)
@example(b"a\r\nb", [2], 1, True)
def test_any_division_into_splits_gives_the_same_lines(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    ranges: list[int],
    block: int,
    utf8: bool,
) -> None:
    monkeypatch.setattr(text_lines, "_BATCH_BYTES", block)
    (tmp_path / "x").write_bytes(content)
    assert read(reader(tmp_path, utf8), "x", len(content), ranges) == model(content, utf8)


def test_rows_carry_their_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(b"one\n\ntwo")
    ((batch, count),) = reader(tmp_path).read(["a b", 12, 0, None])
    uri = f"{open_store(str(tmp_path)).uri}/a b"
    assert count == 2
    assert batch.column(RECORD_FILE).to_pylist() == [uri] * 2
    assert batch.column(RECORD_LINE).to_pylist() == [1, 3]
    assert batch.column(ARRIVAL_FILE).to_pylist() == [f"{12:020d} {uri}"] * 2


@pytest.mark.parametrize("ranges", [[], [3], [9]])
def test_header_is_not_counted_as_a_record(tmp_path: Path, ranges: list[int]) -> None:
    content = b"\n\na,b\n1,2\n3,4\n"
    (tmp_path / "x.csv").write_bytes(content)
    reading = reader(tmp_path, format="csv", header=True)
    bounds = [0, *ranges]
    ends: list[int | None] = [*ranges, None]
    batches = [
        item
        for start, end in zip(bounds, ends, strict=True)
        for item in reading.read(["x.csv", 1, start, end])
    ]
    assert sum(count for _, count in batches) == 2
    assert sum(sum(batch.column(FIRST).to_pylist()) for batch, _ in batches) == 1


def compressed(kind: str, content: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, kind) as stream:
        stream.write(content)
    return bytes(out.getvalue())


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".zst", lambda content: compressed("zstd", content)),
        (".lz4", lambda content: compressed("lz4", content)),
    ],
)
def test_decompresses_files(tmp_path: Path, suffix: str, pack: Any) -> None:
    content = b"a\r\n\nb\n" * 1_000
    (tmp_path / f"x.json{suffix}").write_bytes(pack(content))
    assert text_lines.is_compressed(f"x.json{suffix}")
    assert read(reader(tmp_path), f"x.json{suffix}", 1, []) == model(content)


def test_whole_file_is_one_text(tmp_path: Path) -> None:
    content = b'[{"a": 1},\n {"a": 2}]'
    (tmp_path / "x").write_bytes(content)
    ((batch, counted),) = reader(tmp_path, whole=True).read(["x", 1, 0, None])
    assert batch.column(TEXT_BYTES).to_pylist() == [content]
    assert counted == 0, "records are counted where they are parsed"
