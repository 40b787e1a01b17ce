"""A manifest: what is stored is what was decided, or it is not believed."""

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
    SinkState,
    SourceState,
    StreamState,
)

MANIFEST = Manifest(
    generation=2,
    epoch=41,
    key_groups=16,
    now_us=1_767_225_600_000_000,
    streams={
        "s": StreamState(
            "0a1b2c3d",
            {"bids": SourceState("files", {"path": "file:///in", "format": "json"})},
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
    sinks={"Out": SinkState("s", "files", 41, [{"staged": "x", "folder": [], "rows": 3}])},
    restored=[[0, 3, 6], [1, 17, 40]],
    keep_before_generation=2,
)

texts = st.text(max_size=8)
numbers = st.integers(-(2**63), 2**63)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def named(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(texts, strategy, max_size=3)


manifests = st.builds(
    Manifest,
    st.integers(0, 999),
    st.integers(-1, 10**12 - 1),
    st.integers(1, 1024),
    numbers,
    named(
        st.builds(
            StreamState,
            texts,
            named(st.builds(SourceState, texts, named(texts))),
            named(values),
            named(numbers),
            st.booleans(),
            numbers,
            numbers,
        )
    ),
    named(
        st.builds(
            OperatorState,
            texts,
            texts,
            texts,
            named(st.lists(values)),
            named(numbers),
            named(values),
        )
    ),
    named(st.builds(SinkState, texts, texts, numbers, st.lists(values, max_size=3), numbers)),
    st.lists(st.lists(numbers, min_size=3, max_size=3), max_size=2),
    numbers,
)


@given(manifests)
def test_what_is_stored_comes_back(manifest: Manifest) -> None:
    data = manifest.to_bytes()
    assert Manifest.from_bytes(data) == manifest
    assert manifest.to_bytes() == data


def test_it_is_json_that_a_person_can_read() -> None:
    text = MANIFEST.to_bytes().decode()
    stored = json.loads(text)
    assert stored["manifest"]["epoch"] == 41 and "\n" in text
    assert MANIFEST.stamp == "002-000000000041"


@pytest.mark.parametrize("bit", [0x01, 0x10, 0x80])
def test_a_manifest_with_any_byte_flipped_is_not_believed(bit: int) -> None:
    """Or it says the same: some bytes are only blanks."""
    whole = MANIFEST.to_bytes()
    rejected = 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= bit
        try:
            assert Manifest.from_bytes(bytes(damaged)) == MANIFEST, place
        except DamagedManifest:
            rejected += 1
    assert rejected > len(whole) * 0.9


def test_a_manifest_that_is_cut_short_is_not_believed() -> None:
    whole = MANIFEST.to_bytes()
    for length in range(len(whole)):
        with pytest.raises(DamagedManifest):
            Manifest.from_bytes(whole[:length])


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b"7", b"\xff\xfe", b"\0" * 4096])
def test_what_is_no_manifest_is_not_believed(data: bytes) -> None:
    with pytest.raises(DamagedManifest, match="not whole"):
        Manifest.from_bytes(data)


def test_another_format_is_named() -> None:
    stored = json.loads(MANIFEST.to_bytes())
    stored["format"] = 99
    with pytest.raises(DamagedManifest, match="its format is 99"):
        Manifest.from_bytes(json.dumps(stored).encode())


def test_a_changed_number_is_noticed_however_the_text_is_laid_out() -> None:
    stored = json.loads(MANIFEST.to_bytes())
    again = json.dumps(stored, indent=None).encode()
    assert Manifest.from_bytes(again) == MANIFEST
    stored["manifest"]["streams"]["s"]["rows_in"] += 1
    with pytest.raises(DamagedManifest, match="checksum"):
        Manifest.from_bytes(json.dumps(stored).encode())
    assert replace(MANIFEST, epoch=42) != MANIFEST
