"""The contract of `StateBackend`, for every backend in BACKENDS."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.state.memory import MemoryStore
from tidegate.state.state_file import StateBackend, StateFileBackend


def unsaved_file_backend() -> StateBackend:
    """Return a backend of state files with nothing saved."""

    def missing(file: str) -> memoryview:
        raise AssertionError(f"{file} was never written")

    return StateFileBackend(None, missing, "the state of a test")


BACKENDS: dict[str, Callable[[], StateBackend]] = {
    "memory": lambda: MemoryStore().backend(operator_id=7, key_group=3),
    "files": unsaved_file_backend,
}
KEYS = st.lists(st.sampled_from([0, 1, 97, 255]), max_size=3).map(bytes)
NAMES = st.sampled_from(["a", "ab", "b", "a\x00b", ""])


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> StateBackend:
    return BACKENDS[request.param]()


def test_get_returns_value(backend: StateBackend) -> None:
    backend.put("count", b"k", b"1")
    assert backend.get("count", b"k") == b"1"


def test_put_replaces_value(backend: StateBackend) -> None:
    backend.put("count", b"k", b"1")
    backend.put("count", b"k", b"2")
    assert backend.get("count", b"k") == b"2"
    assert list(backend.scan("count")) == [(b"k", b"2")]


def test_missing_keys_are_ignored(backend: StateBackend) -> None:
    assert backend.get("count", b"k") is None
    assert list(backend.scan("count")) == []
    backend.delete("count", b"k")
    backend.clear()


def test_accepts_empty_key_and_value(backend: StateBackend) -> None:
    backend.put("count", b"", b"")
    assert backend.get("count", b"") == b""
    assert list(backend.scan("count")) == [(b"", b"")]


def test_deleted_key_can_be_added_again(backend: StateBackend) -> None:
    backend.put("count", b"k", b"1")
    assert list(backend.scan("count")) == [(b"k", b"1")]
    backend.delete("count", b"k")
    assert (backend.get("count", b"k"), list(backend.scan("count"))) == (None, [])
    backend.put("count", b"k", b"2")
    assert list(backend.scan("count")) == [(b"k", b"2")]


def test_names_are_separate_maps(backend: StateBackend) -> None:
    for name in ("a", "ab", "a\x00", ""):
        backend.put(name, b"b", name.encode())
    for name in ("a", "ab", "a\x00", ""):
        assert list(backend.scan(name)) == [(b"b", name.encode())]


def test_scan_is_sorted_and_excludes_end(backend: StateBackend) -> None:
    for key in (b"c", b"a", b"\xff", b"b", b"bb"):
        backend.put("n", key, key)
    assert [key for key, _ in backend.scan("n")] == [b"a", b"b", b"bb", b"c", b"\xff"]
    assert [key for key, _ in backend.scan("n", b"b", b"c")] == [b"b", b"bb"]
    assert [key for key, _ in backend.scan("n", b"c")] == [b"c", b"\xff"]
    assert [key for key, _ in backend.scan("n", end=b"b")] == [b"a"]
    assert list(backend.scan("n", b"c", b"a")) == []
    assert list(backend.scan("n", end=b"")) == []


def test_scan_skips_keys_deleted_or_added_meanwhile(backend: StateBackend) -> None:
    for key in (b"a", b"b", b"c"):
        backend.put("n", key, b"old")
    entries = []
    for key, value in backend.scan("n"):
        entries.append((key, value))
        backend.delete("n", b"b")
        backend.put("n", b"d", b"new")
    assert entries == [(b"a", b"old"), (b"c", b"old")]


def test_clear_removes_all_names(backend: StateBackend) -> None:
    backend.put("a", b"k", b"1")
    backend.put("b", b"k", b"2")
    backend.clear()
    assert (list(backend.scan("a")), list(backend.scan("b"))) == ([], [])
    backend.put("a", b"k", b"3")
    assert backend.get("a", b"k") == b"3"


OPERATIONS = st.one_of(
    st.tuples(st.just("put"), NAMES, KEYS, st.binary(max_size=2)),
    st.tuples(st.just("delete"), NAMES, KEYS),
    st.tuples(st.just("get"), NAMES, KEYS),
    st.tuples(st.just("scan"), NAMES, KEYS, st.none() | KEYS),
    st.tuples(st.just("clear")),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(OPERATIONS, max_size=30))
def test_behaves_like_dicts(backend: StateBackend, operations: list[tuple[object, ...]]) -> None:
    backend.clear()
    model: dict[tuple[object, ...], object] = {}
    for operation, *arguments in operations:
        result = getattr(backend, str(operation))(*arguments)
        if operation == "put":
            model[tuple(arguments[:2])] = arguments[2]
        elif operation == "delete":
            model.pop(tuple(arguments), None)
        elif operation == "clear":
            model.clear()
        elif operation == "get":
            assert result == model.get(tuple(arguments))
        else:
            assert list(result) == expected_scan(model, *arguments)


def expected_scan(model: dict, name: str, start: bytes, end: bytes | None) -> list:  # type: ignore[type-arg]
    return sorted(
        (key, value)
        for (map_name, key), value in model.items()
        if map_name == name and key >= start and (end is None or key < end)
    )
