"""What every state backend must do; another one joins by a line in BACKENDS."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from tidegate.state.memory import MemoryStore
from tidegate.state.state_file import FileBackend, StateBackend


def in_files() -> StateBackend:
    """State files that nobody has saved yet."""

    def missing(file: str) -> memoryview:
        raise AssertionError(f"{file} was never written")

    return FileBackend(None, missing, "the state of a test")


BACKENDS: dict[str, Callable[[], StateBackend]] = {
    "memory": lambda: MemoryStore().backend(operator_id=7, key_group=3),
    "files": in_files,
}
KEYS = some.lists(some.sampled_from([0, 1, 97, 255]), max_size=3).map(bytes)
NAMES = some.sampled_from(["a", "ab", "b", "a\x00b", ""])


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> StateBackend:
    return BACKENDS[request.param]()


def test_what_was_put_is_read(backend: StateBackend) -> None:
    backend.put("count", b"k", b"1")
    assert backend.get("count", b"k") == b"1"


def test_the_last_put_counts(backend: StateBackend) -> None:
    backend.put("count", b"k", b"1")
    backend.put("count", b"k", b"2")
    assert backend.get("count", b"k") == b"2"
    assert list(backend.scan("count")) == [(b"k", b"2")]


def test_restore_missing_key_is_noop(backend: StateBackend) -> None:
    assert backend.get("count", b"k") is None
    assert list(backend.scan("count")) == []
    backend.delete("count", b"k")
    backend.clear()


def test_empty_keys_and_values_are_keys_and_values(backend: StateBackend) -> None:
    backend.put("count", b"", b"")
    assert backend.get("count", b"") == b""
    assert list(backend.scan("count")) == [(b"", b"")]


def test_a_deleted_key_is_gone_and_may_come_back(backend: StateBackend) -> None:
    backend.put("count", b"k", b"1")
    assert list(backend.scan("count")) == [(b"k", b"1")]
    backend.delete("count", b"k")
    assert (backend.get("count", b"k"), list(backend.scan("count"))) == (None, [])
    backend.put("count", b"k", b"2")
    assert list(backend.scan("count")) == [(b"k", b"2")]


def test_names_do_not_see_each_other(backend: StateBackend) -> None:
    for name in ("a", "ab", "a\x00", ""):
        backend.put(name, b"b", name.encode())
    for name in ("a", "ab", "a\x00", ""):
        assert list(backend.scan(name)) == [(b"b", name.encode())]


def test_a_scan_is_sorted_with_its_start_and_without_its_end(backend: StateBackend) -> None:
    for key in (b"c", b"a", b"\xff", b"b", b"bb"):
        backend.put("n", key, key)
    assert [key for key, _ in backend.scan("n")] == [b"a", b"b", b"bb", b"c", b"\xff"]
    assert [key for key, _ in backend.scan("n", b"b", b"c")] == [b"b", b"bb"]
    assert [key for key, _ in backend.scan("n", b"c")] == [b"c", b"\xff"]
    assert [key for key, _ in backend.scan("n", end=b"b")] == [b"a"]
    assert list(backend.scan("n", b"c", b"a")) == []
    assert list(backend.scan("n", end=b"")) == []


def test_state_may_change_during_a_scan(backend: StateBackend) -> None:
    for key in (b"a", b"b", b"c"):
        backend.put("n", key, b"old")
    seen = []
    for key, value in backend.scan("n"):
        seen.append((key, value))
        backend.delete("n", b"b")
        backend.put("n", b"d", b"new")
    assert seen == [(b"a", b"old"), (b"c", b"old")]


def test_clear_forgets_all_names(backend: StateBackend) -> None:
    backend.put("a", b"k", b"1")
    backend.put("b", b"k", b"2")
    backend.clear()
    assert (list(backend.scan("a")), list(backend.scan("b"))) == ([], [])
    backend.put("a", b"k", b"3")
    assert backend.get("a", b"k") == b"3"


OPERATIONS = some.one_of(
    some.tuples(some.just("put"), NAMES, KEYS, some.binary(max_size=2)),
    some.tuples(some.just("delete"), NAMES, KEYS),
    some.tuples(some.just("get"), NAMES, KEYS),
    some.tuples(some.just("scan"), NAMES, KEYS, some.none() | KEYS),
    some.tuples(some.just("clear")),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(some.lists(OPERATIONS, max_size=30))
def test_any_operations_behave_as_on_plain_dicts(
    backend: StateBackend, operations: list[tuple[object, ...]]
) -> None:
    backend.clear()
    model: dict[tuple[object, ...], object] = {}
    for operation, *arguments in operations:
        got = getattr(backend, str(operation))(*arguments)
        if operation == "put":
            model[tuple(arguments[:2])] = arguments[2]
        elif operation == "delete":
            model.pop(tuple(arguments), None)
        elif operation == "clear":
            model.clear()
        elif operation == "get":
            assert got == model.get(tuple(arguments))
        else:
            assert list(got) == in_range(model, *arguments)


def in_range(model: dict, name: str, start: bytes, end: bytes | None) -> list:  # type: ignore[type-arg]
    return sorted(
        (key, value)
        for (of, key), value in model.items()
        if of == name and key >= start and (end is None or key < end)
    )
