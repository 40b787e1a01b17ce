"""Value, list, map and reducing state, on every backend."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state.test_backend import BACKENDS
from tidegate.state.keyed_state import (
    BYTES,
    INT,
    KEY,
    TEXT,
    ListState,
    MapState,
    ReducingState,
    ValueState,
    encode_key,
)
from tidegate.state.state_file import StateBackend

# Keys that are prefixes of each other, and keys that contain the terminator.
KEYS = (b"", b"a", b"a\x00", b"a\x00\x01", b"ab", encode_key(("a", 1)))


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> StateBackend:
    return BACKENDS[request.param]()


class NoElementReads:
    """A backend that fails if an element of a list is read."""

    def __init__(self, backend: StateBackend) -> None:
        self.backend = backend
        self.put, self.delete, self.clear = backend.put, backend.delete, backend.clear
        self.reads = 0

    def get(self, name: str, key: bytes) -> bytes | None:
        self.reads += 1
        assert len(key) < 8, "an element was read"
        return self.backend.get(name, key)

    def scan(
        self, name: str, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        raise AssertionError("elements were read")


def test_value_state_returns_value(backend: StateBackend) -> None:
    state = ValueState(backend, "answer", INT)
    assert state.get() is None
    state.put(42)
    assert state.get() == 42
    assert ValueState(backend, "answer", INT).get() == 42


def test_cleared_value_is_none(backend: StateBackend) -> None:
    state = ValueState(backend, "answer", INT)
    state.put(0)
    assert state.get() == 0
    state.clear()
    assert state.get() is None


def test_list_state_returns_elements_in_order(backend: StateBackend) -> None:
    state = ListState(backend, "letters", TEXT)
    for letter in ("a", "b", "c"):
        state.append(letter)
    assert state.get() == ["a", "b", "c"]
    assert ListState(backend, "letters", TEXT).get() == ["a", "b", "c"]
    assert len(state) == 3


def test_list_of_more_than_256_elements_keeps_order(backend: StateBackend) -> None:
    state = ListState(backend, "numbers", INT)
    state.extend(range(300))
    state.append(300)
    assert state.get() == list(range(301))


def test_append_reads_no_element(backend: StateBackend) -> None:
    watched = NoElementReads(backend)
    state = ListState(watched, "letters", TEXT, b"k")
    state.extend("abc")
    state.append("d")
    assert watched.reads == 2
    assert ListState(backend, "letters", TEXT, b"k").get() == ["a", "b", "c", "d"]


def test_cleared_list_is_empty_and_can_be_appended_to(backend: StateBackend) -> None:
    state = ListState(backend, "letters", TEXT)
    state.extend("abc")
    state.clear()
    assert (state.get(), len(state), list(backend.scan("letters"))) == ([], 0, [])
    state.append("z")
    assert state.get() == ["z"]


def test_extend_with_no_values_writes_nothing(backend: StateBackend) -> None:
    ListState(backend, "letters", TEXT).extend([])
    assert list(backend.scan("letters")) == []


def test_map_state_iterates_in_key_order(backend: StateBackend) -> None:
    state = MapState(backend, "player", TEXT, INT)
    state.put("score", 100)
    state.put("level", 5)
    assert list(state.keys()) == ["level", "score"]
    assert list(state.items()) == [("level", 5), ("score", 100)]
    assert (state.get("level"), state.get("lives")) == (5, None)


def test_removes_map_keys(backend: StateBackend) -> None:
    state = MapState(backend, "player", TEXT, INT)
    state.put("level", 5)
    state.put("score", 100)
    state.remove("level")
    state.remove("missing")
    assert list(state.items()) == [("score", 100)]
    state.clear()
    assert (list(state.items()), list(backend.scan("player"))) == ([], [])


def test_map_keys_of_several_columns_sort_like_tuples(backend: StateBackend) -> None:
    state = MapState(backend, "windows", KEY, BYTES)
    for key in ((2, "a"), (-1, "z"), (None, "q"), (2, None), (2, "")):
        state.put(key, b"")
    assert list(state.keys()) == [(None, "q"), (-1, "z"), (2, None), (2, ""), (2, "a")]


def test_map_state_rejects_serializer_without_order(backend: StateBackend) -> None:
    with pytest.raises(AssertionError, match="order"):
        MapState(backend, "windows", INT, BYTES)


def test_reducing_state_combines_values(backend: StateBackend) -> None:
    state = ReducingState(backend, "total", INT, operator.add)
    assert state.get() is None
    for value in (10, 20, 30):
        state.add(value)
    assert state.get() == 60
    assert ReducingState(backend, "total", INT, operator.add).get() == 60


def test_reduce_function_gets_older_value_first(backend: StateBackend) -> None:
    state = ReducingState(backend, "texts", TEXT, operator.add)
    for value in ("a", "b", "c"):
        state.add(value)
    assert state.get() == "abc"
    state.clear()
    assert state.get() is None


def test_user_keys_are_isolated(backend: StateBackend) -> None:
    for key in KEYS:
        ValueState(backend, "v", BYTES, key).put(key)
        ListState(backend, "l", BYTES, key).extend((key, b"\x00", b"\x01"))
        MapState(backend, "m", BYTES, BYTES, key).put(b"\x00\x01", key)
        ReducingState(backend, "r", BYTES, operator.add, key).add(key)
    ListState(backend, "l", BYTES, b"gone").append(b"x")
    ListState(backend, "l", BYTES, b"gone").clear()
    for key in KEYS:
        assert ValueState(backend, "v", BYTES, key).get() == key
        assert ListState(backend, "l", BYTES, key).get() == [key, b"\x00", b"\x01"]
        assert list(MapState(backend, "m", BYTES, BYTES, key).items()) == [(b"\x00\x01", key)]
        assert ReducingState(backend, "r", BYTES, operator.add, key).get() == key


def test_clear_affects_one_user_key(backend: StateBackend) -> None:
    for key in KEYS:
        ListState(backend, "l", BYTES, key).append(key)
        MapState(backend, "m", BYTES, BYTES, key).put(b"", key)
    ListState(backend, "l", BYTES, b"a").clear()
    MapState(backend, "m", BYTES, BYTES, b"a").clear()
    for key in KEYS:
        expected = [] if key == b"a" else [key]
        assert ListState(backend, "l", BYTES, key).get() == expected
        assert [value for _, value in MapState(backend, "m", BYTES, BYTES, key).items()] == expected


@given(st.integers())
def test_integers_of_any_size_round_trip(value: int) -> None:
    assert INT.from_bytes(INT.to_bytes(value)) == value


@given(st.text())
def test_texts_round_trip(value: str) -> None:
    assert TEXT.from_bytes(TEXT.to_bytes(value)) == value
