"""The memory store: scans of key groups, isolation, snapshots, and the sorted map."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import DataDirectoryError
from tidegate.state.keyed_state import (
    INT,
    TEXT,
    FullKey,
    ListState,
    ValueState,
    encode_key,
    key_group_of,
)
from tidegate.state.memory import MemoryStore, SortedMap

GROUPS = st.sampled_from([0, 1, 63, 64, 127, 255, 256, 65535])
OPERATORS = st.sampled_from([0, 1, 255, 256, 2**32 - 1])
FULL_KEYS = st.builds(
    FullKey, OPERATORS, GROUPS, st.sampled_from(["", "a", "\x00"]), st.binary(max_size=2)
)


def fill(store: MemoryStore, entries: dict[FullKey, bytes]) -> None:
    for key, value in entries.items():
        store.backend(key.operator_id, key.key_group).put(key.name, key.user_key, value)


def all_entries(store: MemoryStore) -> dict[FullKey, bytes]:
    ids = (0, 1, 255, 256, 2**32 - 1)
    return {key: value for id_ in ids for key, value in store.scan_key_groups(id_, 0, 65536)}


def test_scan_key_groups_returns_their_keys() -> None:
    store = MemoryStore()
    users = [encode_key((f"user-{number}",)) for number in range(1000)]
    for user in users:
        for operator_id in (1, 2):
            store.backend(operator_id, key_group_of(user)).put("total", user, user)
    entries = list(store.scan_key_groups(1, 0, 64))
    assert {key.user_key for key, _ in entries} == {u for u in users if key_group_of(u) < 64}
    assert {key.operator_id for key, _ in entries} == {1}
    other_keys = {key.user_key for key, _ in store.scan_key_groups(1, 64, 128)}
    assert other_keys == set(users) - {key.user_key for key, _ in entries}


@given(
    st.dictionaries(FULL_KEYS, st.binary(max_size=2)),
    OPERATORS,
    st.integers(0, 65536),
    st.integers(0, 65536),
)
def test_scan_key_groups_equals_filtered_entries(
    entries: dict[FullKey, bytes], operator_id: int, one: int, two: int
) -> None:
    first, last = sorted((one, two))
    store = MemoryStore()
    fill(store, entries)
    expected = {
        key: value
        for key, value in entries.items()
        if key.operator_id == operator_id and first <= key.key_group < last
    }
    assert dict(store.scan_key_groups(operator_id, first, last)) == expected


def test_operators_are_isolated() -> None:
    store = MemoryStore()
    one, two = store.backend(1, 0), store.backend(2, 0)
    one.put("total", b"k", b"one")
    assert (two.get("total", b"k"), list(two.scan("total"))) == (None, [])
    two.put("total", b"k", b"two")
    assert [key.operator_id for key, _ in store.scan_key_groups(1, 0, 65536)] == [1]
    one.clear()
    assert (list(one.scan("total")), list(two.scan("total"))) == ([], [(b"k", b"two")])


@pytest.mark.parametrize("cleared", [0, 1, 2])
def test_key_groups_are_isolated(cleared: int) -> None:
    store = MemoryStore()
    for group in range(3):
        store.backend(1, group).put("total", b"k", bytes([group]))
    store.backend(1, cleared).clear()
    for group in range(3):
        expected = [] if group == cleared else [(b"k", bytes([group]))]
        assert list(store.backend(1, group).scan("total")) == expected


def test_rejects_ids_out_of_range() -> None:
    for operator_id, key_group in ((2**32, 0), (-1, 0), (0, 65536), (0, -1)):
        with pytest.raises(AssertionError, match="out of range"):
            MemoryStore().backend(operator_id, key_group)


@given(st.dictionaries(FULL_KEYS, st.binary()))
def test_restore_returns_all_entries(entries: dict[FullKey, bytes]) -> None:
    store = MemoryStore()
    fill(store, entries)
    restored = MemoryStore.restore(store.snapshot())
    assert all_entries(restored) == entries
    assert restored.snapshot() == store.snapshot()


def test_later_changes_do_not_affect_a_snapshot() -> None:
    store = MemoryStore()
    state = ValueState(store.backend(1, 0), "total", INT)
    state.put(1)
    snapshot = store.snapshot()
    state.put(2)
    assert ValueState(MemoryStore.restore(snapshot).backend(1, 0), "total", INT).get() == 1


def test_restored_list_can_be_appended_to() -> None:
    store = MemoryStore()
    ListState(store.backend(1, 0), "letters", TEXT).extend("ab")
    restored = MemoryStore.restore(store.snapshot())
    state = ListState(restored.backend(1, 0), "letters", TEXT)
    state.append("c")
    assert state.get() == ["a", "b", "c"]


def test_cleared_state_leaves_an_empty_snapshot() -> None:
    store = MemoryStore()
    backend = store.backend(1, 0)
    ListState(backend, "letters", TEXT).extend("ab")
    backend.clear()
    assert store.snapshot() == MemoryStore().snapshot()
    assert all_entries(MemoryStore.restore(store.snapshot())) == {}


def test_restore_rejects_damaged_snapshots() -> None:
    store = MemoryStore()
    store.backend(1, 0).put("total", b"k", b"v")
    snapshot = store.snapshot()
    for position in range(len(snapshot)):
        damaged = bytearray(snapshot)
        damaged[position] ^= 0x10
        for stored in (bytes(damaged), snapshot[:position], snapshot + b"x"):
            with pytest.raises(DataDirectoryError) as caught:
                MemoryStore.restore(stored)
            assert caught.value.code == "TG-605"


def test_stores_a_copy_of_the_value() -> None:
    backend, value = MemoryStore().backend(1, 0), bytearray(b"old")
    backend.put("total", b"k", value)  # type: ignore[arg-type]
    value[:] = b"new"
    assert backend.get("total", b"k") == b"old"


@pytest.mark.parametrize("step", [1, 10, 500])
def test_sorted_map_stays_sorted_when_it_grows_and_shrinks(step: int) -> None:
    entries, model = SortedMap(), {}
    for number in range(0, 3000, step):
        for key in range(number, number + step):
            raw = (key * 7919 % 3000).to_bytes(2, "big")
            entries.put(raw, raw)
            model[raw] = raw
        for raw in [*model][: step // 2 + number % 2]:
            entries.delete(raw)
            del model[raw]
            if raw[1] % 8 == 0:
                entries.put(raw, b"again")
                model[raw] = b"again"
        if number % (10 * step) == 0:
            assert list(entries.scan()) == sorted(model.items())
    assert list(entries.scan(b"\x02", b"\x05")) == sorted(
        (key, value) for key, value in model.items() if b"\x02" <= key < b"\x05"
    )
    assert len(entries) == len(model)
