"""State files: state survives every restart, and damage is detected."""

from __future__ import annotations

import random
import zlib
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
from tidegate.state import state_file
from tidegate.state.state_file import StateFileBackend, StateFileBuilder, StateHandle

DESCRIPTION = "the state of the stream s, operator w"


@dataclass
class FakeWriter:
    """Writes a file to a dictionary."""

    target: dict[str, bytes]
    name: str
    data: bytearray = field(default_factory=bytearray)

    def write(self, data: bytes | memoryview) -> int:
        self.data += data
        return len(data)

    def close(self) -> None:
        assert self.name not in self.target, "a file is written once"
        self.target[self.name] = bytes(self.data)


class Folder:
    """Files in memory; they become visible when they are closed."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.count = 0

    def new(self) -> StateFileBuilder:
        self.count += 1
        return StateFileBuilder(f"f{self.count}", lambda name: FakeWriter(self.files, name))

    def read(self, name: str) -> memoryview:
        return memoryview(self.files[name])

    def open(self, handle: StateHandle | None) -> StateFileBackend:
        return StateFileBackend(handle, self.read, DESCRIPTION)

    def save(self, backend: StateFileBackend) -> StateHandle:
        file = self.new()
        handle = backend.save(file)
        file.close()
        return StateHandle.from_json(handle.to_json())

    def sweep(self, *state_handles: StateHandle) -> None:
        """Remove the files that these state handles do not need."""
        needed = {name for handle in state_handles for name in self.needed_files(handle)}
        self.files = {name: data for name, data in self.files.items() if name in needed}

    def needed_files(self, handle: StateHandle) -> set[str]:
        return {handle.file, *self.open(handle).needed_files}


@pytest.fixture(autouse=True)
def forget_verified_extents() -> Iterator[None]:
    state_file._verified.clear()
    yield
    state_file._verified.clear()


def scan(backend: StateFileBackend, name: str, *bounds: Any) -> dict[bytes, bytes]:
    return {key: bytes(value) for key, value in backend.scan(name, *bounds)}


names = st.sampled_from(["a", "b", "ab"])
keys = st.binary(max_size=3)


class Model(RuleBasedStateMachine):
    """The state of two key groups in shared files, compared with dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        state_file._verified.clear()

    @initialize(small_state_bytes=st.sampled_from([0, 64, 64 << 10]))
    def start(self, small_state_bytes: int) -> None:
        # Small state is rewritten in every epoch; lower the limit to test larger state, too.
        state_file._SMALL_STATE_BYTES = small_state_bytes
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
        """Run an epoch: the touched key groups write one file, the others keep their handles."""
        file = self.folder.new()
        for group in sorted(touched):
            self.state_handles[group] = self.backends[group].save(file)
            self.stored[group] = self.model[group]
        file.close()
        self.folder.sweep(*(handle for handle in self.state_handles if handle is not None))
        self.reopen()

    @rule()
    def lose_attempt(self) -> None:
        """Write a file that no manifest refers to, as a task that dies."""
        file = self.folder.new()
        for backend in self.backends:
            backend.save(file)
        file.close()
        self.reopen()

    @rule()
    def restart_process(self) -> None:
        state_file._verified.clear()
        self.reopen()

    @invariant()
    def state_equals_model(self) -> None:
        if not hasattr(self, "folder"):
            return
        for backend, model in zip(self.backends, self.model, strict=True):
            for name in ("a", "b", "ab"):
                expected = {
                    key: value for (map_name, key), value in model.items() if map_name == name
                }
                assert scan(backend, name) == expected
                assert [key for key, _ in backend.scan(name)] == sorted(expected)
                part = {key: value for key, value in expected.items() if b"\x40" <= key < b"\xa0"}
                assert scan(backend, name, b"\x40", b"\xa0") == part
                for key, value in expected.items():
                    stored = backend.get(name, key)
                    assert stored is not None and bytes(stored) == value


def test_behaves_like_dict_over_saves_and_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "_SMALL_STATE_BYTES", state_file._SMALL_STATE_BYTES)
    run_state_machine_as_test(
        Model, settings=settings(max_examples=60, stateful_step_count=25, deadline=None)
    )


def save_entries(
    folder: Folder, entries: dict[bytes, bytes], handle: StateHandle | None = None
) -> StateHandle:
    backend = folder.open(handle)
    for key, value in entries.items():
        backend.put("e", key, value)
    return folder.save(backend)


def test_entries_are_aligned_memory_views() -> None:
    folder = Folder()
    handle = save_entries(folder, {b"k": b"x" * 100, b"l": b"y"})
    backend = folder.open(handle)
    extents = list(backend._index.entries.values())
    assert [offset % 64 for _, offset, _, _ in extents] == [0, 0]
    assert isinstance(backend.get("e", b"k"), memoryview)


@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_flipped_byte_is_detected_or_unused(monkeypatch: pytest.MonkeyPatch, bit: int) -> None:
    """Flip a bit in every byte of the three files of a state."""
    monkeypatch.setattr(state_file, "_SMALL_STATE_BYTES", 0)
    folder = Folder()
    handle = save_entries(folder, {bytes([n]): bytes([n]) * 90 for n in range(3)})
    handle = save_entries(folder, {bytes([n]): bytes([n]) * 90 for n in range(3, 6)}, handle)
    handle = save_entries(folder, {b"last": b"z" * 10}, handle)
    expected = scan(folder.open(handle), "e")
    intact, rejected, undetected = dict(folder.files), 0, 0
    for name, data in intact.items():
        for position in range(len(data)):
            damaged = bytearray(data)
            damaged[position] ^= bit
            folder.files = {**intact, name: bytes(damaged)}
            state_file._verified.clear()
            try:
                assert scan(folder.open(handle), "e") == expected
                undetected += 1
            except DataDirectoryError as error:
                rejected += 1
                assert error.code == "TG-605" and error.message.startswith(DESCRIPTION)
    # Checksums cover all entries and the newest index. Older indexes and padding are not read.
    assert rejected == sum(map(len, expected.values())) + handle.length
    assert undetected > 0


def test_rejects_truncated_files() -> None:
    folder = Folder()
    handle = save_entries(folder, {b"k": b"x" * 100, b"l": b"y" * 70})
    intact = folder.files[handle.file]
    for length in range(handle.offset + handle.length):
        folder.files[handle.file] = intact[:length]
        state_file._verified.clear()
        with pytest.raises(DataDirectoryError) as caught:
            scan(folder.open(handle), "e")
        assert caught.value.code == "TG-605"


def test_rejects_other_index_format() -> None:
    folder = Folder()
    file = folder.new()
    data = b"[99,[],[],{}]"
    handle = StateHandle(file.name, file.append(data), len(data), zlib.crc32(data))
    file.close()
    with pytest.raises(DataDirectoryError, match="its format is 99"):
        folder.open(handle)


def total_bytes(folder: Folder) -> int:
    return sum(map(len, folder.files.values()))


@pytest.mark.parametrize("seed", range(3))
def test_keeps_at_most_twice_the_needed_bytes(seed: int) -> None:
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
        folder.sweep(handle)
        assert scan(folder.open(handle), "e") == model
        needed = sum(-(-len(value) // 64) * 64 for value in model.values())
        # Each file also contains its index, with less than 100 bytes per entry.
        indexes = len(folder.files) * (len(model) + 12) * 100
        assert total_bytes(folder) <= 2 * needed + indexes + (64 << 10)


def test_small_change_writes_few_bytes() -> None:
    """Change one percent of the entries of 40 MB of state."""
    folder = Folder()
    value = bytes(20_000)
    handle = save_entries(folder, {n.to_bytes(8): value for n in range(2_000)})
    initial_bytes = total_bytes(folder)
    changed = {n.to_bytes(8): value for n in random.Random(1).sample(range(2_000), 20)}
    handle = save_entries(folder, changed, handle)
    assert total_bytes(folder) - initial_bytes < 0.02 * initial_bytes
    assert len(scan(folder.open(handle), "e")) == 2_000


def test_unchanged_key_group_writes_only_its_index() -> None:
    folder = Folder()
    handle = save_entries(folder, {n.to_bytes(8): bytes(10_000) for n in range(50)})
    unchanged = folder.save(folder.open(handle))
    assert len(folder.files[unchanged.file]) < 10_000
    assert folder.needed_files(unchanged) == {handle.file, unchanged.file}


def test_number_of_verified_extents_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_file, "_MAX_VERIFIED", 50)
    folder, handle = Folder(), None
    for n in range(200):
        handle = save_entries(folder, {bytes([n]): b"x"}, handle)
        folder.sweep(handle)
    assert len(state_file._verified) <= 50
    assert len(scan(folder.open(handle), "e")) == 200
