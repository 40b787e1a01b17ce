"""State in files: what is put comes back after any restart, or an error says that it does not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tidegate.errors import DataDirectoryError
from tidegate.state import state_file as files
from tidegate.state.state_file import FileBackend, StateFile, StateHandle, files_of

WHAT = "the state of the stream s, operator w"


@dataclass
class Written:
    """A file in the making."""

    into: dict[str, bytes]
    name: str
    data: bytearray = field(default_factory=bytearray)

    def write(self, data: bytes | memoryview) -> int:
        self.data += data
        return len(data)

    def close(self) -> None:
        assert self.name not in self.into, "a file is written once"
        self.into[self.name] = bytes(self.data)


class Folder:
    """Files that are there once they are closed."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.count = 0

    def new(self) -> StateFile:
        self.count += 1
        return StateFile(f"f{self.count}", lambda name: Written(self.files, name))

    def read(self, name: str) -> memoryview:
        return memoryview(self.files[name])

    def open(self, handle: StateHandle | None) -> FileBackend:
        return FileBackend(handle, self.read, WHAT)

    def save(self, backend: FileBackend) -> StateHandle:
        file = self.new()
        handle = backend.save(file)
        file.close()
        return StateHandle.of(handle.as_json())

    def keep(self, *state_handles: StateHandle) -> None:
        """Remove what these heads do not need."""
        needed = {name for handle in state_handles for name in files_of(handle, self.read, WHAT)}
        self.files = {name: data for name, data in self.files.items() if name in needed}


@pytest.fixture(autouse=True)
def nothing_is_known_to_be_whole() -> Iterator[None]:
    files._whole.clear()
    yield
    files._whole.clear()


def scanned(backend: FileBackend, name: str, *bounds: Any) -> dict[bytes, bytes]:
    return {key: bytes(value) for key, value in backend.scan(name, *bounds)}


names = st.sampled_from(["a", "b", "ab"])
keys = st.binary(max_size=3)


class Model(RuleBasedStateMachine):
    """Two key groups in the files of the same tasks, against two dictionaries each."""

    def __init__(self) -> None:
        super().__init__()
        files._whole.clear()

    @initialize(few=st.sampled_from([0, 64, 64 << 10]))
    def start(self, few: int) -> None:
        # Small states are written anew each time; here the others are tested too.
        files._FEW_BYTES = few
        self.folder = Folder()
        self.state_handles: list[StateHandle | None] = [None, None]
        self.stored: list[dict[tuple[str, bytes], bytes]] = [{}, {}]
        self.reopen()

    def reopen(self) -> None:
        self.backends = [self.folder.open(handle) for handle in self.state_handles]
        self.model = [dict(stored) for stored in self.stored]

    @rule(group=st.integers(0, 1), name=names, key=keys, value=st.binary(max_size=300))
    def put(self, group: int, name: str, key: bytes, value: bytes) -> None:
        self.backends[group].put(name, key, value)
        self.model[group][name, key] = value

    @rule(group=st.integers(0, 1), name=names, key=keys)
    def delete(self, group: int, name: str, key: bytes) -> None:
        self.backends[group].delete(name, key)
        self.model[group].pop((name, key), None)

    @rule(group=st.integers(0, 1))
    def clear(self, group: int) -> None:
        self.backends[group].clear()
        self.model[group].clear()

    @rule(touched=st.sets(st.integers(0, 1), min_size=1))
    def save(self, touched: set[int]) -> None:
        """An epoch: one file for the key groups that were touched; the others keep their heads."""
        file = self.folder.new()
        for group in sorted(touched):
            self.state_handles[group] = self.backends[group].save(file)
            self.stored[group] = self.model[group]
        file.close()
        self.folder.keep(*(handle for handle in self.state_handles if handle is not None))
        self.reopen()

    @rule()
    def attempt_that_is_lost(self) -> None:
        """A task died: what it wrote is named by nobody."""
        file = self.folder.new()
        for backend in self.backends:
            backend.save(file)
        file.close()
        self.reopen()

    @rule()
    def another_process(self) -> None:
        files._whole.clear()
        self.reopen()

    @invariant()
    def holds_what_was_put(self) -> None:
        if not hasattr(self, "folder"):
            return
        for backend, model in zip(self.backends, self.model, strict=True):
            for name in ("a", "b", "ab"):
                own = {key: value for (of, key), value in model.items() if of == name}
                assert scanned(backend, name) == own
                assert [key for key, _ in backend.scan(name)] == sorted(own)
                part = {key: value for key, value in own.items() if b"\x40" <= key < b"\xa0"}
                assert scanned(backend, name, b"\x40", b"\xa0") == part
                for key, value in own.items():
                    found = backend.get(name, key)
                    assert found is not None and bytes(found) == value


def test_it_is_a_dictionary_over_any_saves_and_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_FEW_BYTES", files._FEW_BYTES)
    run_state_machine_as_test(
        Model, settings=settings(max_examples=60, stateful_step_count=25, deadline=None)
    )


def filled(
    folder: Folder, entries: dict[bytes, bytes], handle: StateHandle | None = None
) -> StateHandle:
    backend = folder.open(handle)
    for key, value in entries.items():
        backend.put("e", key, value)
    return folder.save(backend)


def test_entries_lie_where_tables_can_be_read_without_a_copy() -> None:
    folder = Folder()
    handle = filled(folder, {b"k": b"x" * 100, b"l": b"y"})
    backend = folder.open(handle)
    places = list(backend._index.entries.values())
    assert [offset % 64 for _, offset, _, _ in places] == [0, 0]
    assert isinstance(backend.get("e", b"k"), memoryview)


@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_a_flipped_byte_is_an_error_or_a_byte_that_nobody_reads(
    monkeypatch: pytest.MonkeyPatch, bit: int
) -> None:
    """Every byte of every file, over a state that lies in three of them."""
    monkeypatch.setattr(files, "_FEW_BYTES", 0)
    folder = Folder()
    handle = filled(folder, {bytes([n]): bytes([n]) * 90 for n in range(3)})
    handle = filled(folder, {bytes([n]): bytes([n]) * 90 for n in range(3, 6)}, handle)
    handle = filled(folder, {b"last": b"z" * 10}, handle)
    expected = scanned(folder.open(handle), "e")
    whole, rejected, read = dict(folder.files), 0, 0
    for name, data in whole.items():
        for place in range(len(data)):
            damaged = bytearray(data)
            damaged[place] ^= bit
            folder.files = {**whole, name: bytes(damaged)}
            files._whole.clear()
            try:
                assert scanned(folder.open(handle), "e") == expected
                read += 1
            except DataDirectoryError as error:
                rejected += 1
                assert error.code == "TG-605" and error.message.startswith(WHAT)
    # All entries and the newest index are covered; old indexes and the gaps are not read.
    assert rejected == sum(map(len, expected.values())) + handle.length
    assert read > 0


def test_files_that_are_cut_short_are_an_error_at_every_length() -> None:
    folder = Folder()
    handle = filled(folder, {b"k": b"x" * 100, b"l": b"y" * 70})
    whole = folder.files[handle.file]
    for length in range(handle.offset + handle.length):
        folder.files[handle.file] = whole[:length]
        files._whole.clear()
        with pytest.raises(DataDirectoryError) as caught:
            scanned(folder.open(handle), "e")
        assert caught.value.code == "TG-605"


def test_another_format_is_named() -> None:
    folder = Folder()
    file = folder.new()
    data = b"[99,[],[],{}]"
    handle = StateHandle(file.name, file.append(data), len(data), files.zlib.crc32(data))
    file.close()
    with pytest.raises(DataDirectoryError, match="its format is 99"):
        folder.open(handle)


def kept_bytes(folder: Folder) -> int:
    return sum(map(len, folder.files.values()))


@pytest.mark.parametrize("seed", range(3))
def test_what_is_kept_is_at_most_about_twice_what_is_needed(seed: int) -> None:
    dice = random.Random(seed)
    folder, handle, model = Folder(), None, dict[bytes, bytes]()
    for _ in range(150):
        backend = folder.open(handle)
        for _ in range(dice.randrange(12)):
            key, value = dice.randbytes(1), dice.randbytes(dice.choice([500, 4_000]))
            backend.put("e", key, value)
            model[key] = value
        for key in dice.sample(sorted(model), min(len(model), dice.randrange(8))):
            backend.delete("e", key)
            del model[key]
        handle = folder.save(backend)
        folder.keep(handle)
        assert scanned(folder.open(handle), "e") == model
        needed = sum(-(-len(value) // 64) * 64 for value in model.values())
        # Each file also ends in the index it was written with, of under 100 bytes an entry.
        indexes = len(folder.files) * (len(model) + 12) * 100
        assert kept_bytes(folder) <= 2 * needed + indexes + (64 << 10)


def test_a_small_change_writes_little() -> None:
    """One per cent of the entries of a state of 40 MB."""
    folder = Folder()
    value = bytes(20_000)
    handle = filled(folder, {n.to_bytes(8): value for n in range(2_000)})
    before = kept_bytes(folder)
    changed = {n.to_bytes(8): value for n in random.Random(1).sample(range(2_000), 20)}
    handle = filled(folder, changed, handle)
    assert kept_bytes(folder) - before < 0.02 * before
    assert len(scanned(folder.open(handle), "e")) == 2_000


def test_a_key_group_that_changes_nothing_writes_its_index_alone() -> None:
    folder = Folder()
    handle = filled(folder, {n.to_bytes(8): bytes(10_000) for n in range(50)})
    again = folder.save(folder.open(handle))
    assert len(folder.files[again.file]) < 10_000
    assert files_of(again, folder.read, WHAT) == {handle.file, again.file}


def test_what_is_remembered_as_whole_does_not_grow_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "_MOST_KNOWN", 50)
    folder, handle = Folder(), None
    for n in range(200):
        handle = filled(folder, {bytes([n]): b"x"}, handle)
        folder.keep(handle)
    assert len(files._whole) <= 50
    assert len(scanned(folder.open(handle), "e")) == 200
