"""Manifests: serialization and detection of damage."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.checkpoint.manifest import (
    DamagedManifest,
    Manifest,
    OperatorState,
    RestoreRecord,
    SinkState,
    SourceIdentity,
    StreamState,
)

MANIFEST = Manifest(
    generation=2,
    epoch=41,
    key_groups=16,
    processing_time_us=1_767_225_600_000_000,
    streams={
        "s": StreamState(
            "0a1b2c3d",
            {"bids": SourceIdentity("files", {"path": "file:///in", "format": "json"})},
            {"bids": {"files": ["ä b.json"]}},
            {"0": 5},
            True,
            3,
            2,
        )
    },
    operators={
        "s.ff": OperatorState("s", "w", "ff", {"0": ["f", 64, 9, 7]}, {"f": 9}, {"rows": 1})
    },
    sinks={"Out": SinkState("s", "files", 41, [{"staged": "x", "folder": [], "rows": 3}], 2, 7)},
    restores=[RestoreRecord(0, 3, 6), RestoreRecord(1, 17, 40)],
    keep_before_generation=2,
)

texts = st.text(max_size=8)
numbers = st.integers(-(2**63), 2**63)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def by_name(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(texts, strategy, max_size=3)


manifests = st.builds(
    Manifest,
    st.integers(0, 999),
    st.integers(-1, 10**12 - 1),
    st.integers(1, 1024),
    numbers,
    by_name(
        st.builds(
            StreamState,
            texts,
            by_name(st.builds(SourceIdentity, texts, by_name(texts))),
            by_name(values),
            by_name(numbers),
            st.booleans(),
            numbers,
            numbers,
        )
    ),
    by_name(
        st.builds(
            OperatorState,
            texts,
            texts,
            texts,
            by_name(st.lists(values)),
            by_name(numbers),
            by_name(values),
        )
    ),
    by_name(
        st.builds(SinkState, texts, texts, numbers, st.lists(values, max_size=3), numbers, numbers)
    ),
    st.lists(st.builds(RestoreRecord, numbers, numbers, numbers), max_size=2),
    numbers,
)


@given(manifests)
def test_manifest_round_trips(manifest: Manifest) -> None:
    data = manifest.to_bytes()
    assert Manifest.from_bytes(data) == manifest
    assert manifest.to_bytes() == data


def test_manifest_is_readable_json() -> None:
    text = MANIFEST.to_bytes().decode()
    stored = json.loads(text)
    assert stored["manifest"]["epoch"] == 41 and "\n" in text
    assert stored["manifest"]["sinks"]["Out"]["stream_rows"] == 7
    assert MANIFEST.stamp == "002-000000000041"


@pytest.mark.parametrize("bit", [0x01, 0x10, 0x80])
def test_flipped_byte_is_detected_or_insignificant(bit: int) -> None:
    """Changed whitespace is not damage."""
    data = MANIFEST.to_bytes()
    rejected = 0
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= bit
        try:
            assert Manifest.from_bytes(bytes(damaged)) == MANIFEST, position
        except DamagedManifest:
            rejected += 1
    assert rejected > len(data) * 0.9


def test_rejects_truncated_manifest() -> None:
    data = MANIFEST.to_bytes()
    for length in range(len(data)):
        with pytest.raises(DamagedManifest):
            Manifest.from_bytes(data[:length])


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b"7", b"\xff\xfe", b"\0" * 4096])
def test_rejects_other_content(data: bytes) -> None:
    with pytest.raises(DamagedManifest, match="incomplete"):
        Manifest.from_bytes(data)


def test_rejects_other_format() -> None:
    stored = json.loads(MANIFEST.to_bytes())
    stored["format"] = 99
    with pytest.raises(DamagedManifest, match="its format is 99"):
        Manifest.from_bytes(json.dumps(stored).encode())


def test_checksum_covers_values_but_not_layout() -> None:
    stored = json.loads(MANIFEST.to_bytes())
    reformatted = json.dumps(stored, indent=None).encode()
    assert Manifest.from_bytes(reformatted) == MANIFEST
    stored["manifest"]["streams"]["s"]["rows_in"] += 1
    with pytest.raises(DamagedManifest, match="checksum"):
        Manifest.from_bytes(json.dumps(stored).encode())
    assert replace(MANIFEST, epoch=42) != MANIFEST
