"""Files that a kept manifest refers to are kept; all others are deleted eventually."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines import PipelineHarness
from tests.support.sinks import files_source
from tidegate.checkpoint.manifest import Manifest, OperatorState, StreamState
from tidegate.checkpoint.manifests import Manifests
from tidegate.connectors.files import listing
from tidegate.runtime.cleanup import FileSweeper
from tidegate.storage import Store, open_store
from tidegate.storage.local import LocalStore

EMPTY = Manifest(0, -1, 16, 0)


def epoch(number: int, state: list[str] | None = None, older: list[str] | None = None) -> Manifest:
    """Return a manifest that refers to state files and to chunks of names."""
    files = dict.fromkeys(state or [], 5)
    stream = StreamState(
        "x", offsets={"s": {"files": [], "older": older or []}, "m": {"insert": 3}}
    )
    operator = OperatorState("t", "w", "1", {}, files)
    return replace(EMPTY, epoch=number, streams={"t": stream}, operators={"t.1": operator})


def opened(path: Path, last: Manifest = EMPTY, retained: int = 2) -> FileSweeper:
    store = open_store(str(path))
    files = FileSweeper(store, Manifests(store, retained))
    files.start(last)
    return files


def decide(files: FileSweeper, manifest: Manifest) -> None:
    files.manifests.create(manifest)
    files.on_commit(manifest)


def stored_names(store: Store, folder: str) -> list[str]:
    return [item.name.rpartition("/")[2] for item in store.list(folder)]


def test_deletes_name_chunks_with_their_last_manifest(tmp_path: Path) -> None:
    files = opened(tmp_path)
    for name in ("names-a", "names-b"):
        files.store.put(f"offsets/s/{name}", b"[]")
    decide(files, epoch(0, older=["names-a", "names-b"]))
    files.store.put("offsets/s/names-ab", b"[]")
    decide(files, epoch(1, older=["names-ab"]))
    assert stored_names(files.store, "offsets") == ["names-a", "names-ab", "names-b"]
    decide(files, epoch(2, older=["names-ab"]))
    assert stored_names(files.store, "offsets") == ["names-ab"]


def test_deletes_leftovers_of_a_dead_process_after_a_commit(tmp_path: Path) -> None:
    """A zombie driver may still commit the next epoch, which needs its chunks."""
    store = open_store(str(tmp_path))
    Manifests(store).create(epoch(0, older=["names-a"]))
    for name in ("offsets/s/names-a", "offsets/s/names-merged", "offsets/s/other-things"):
        store.put(name, b"[]")
    files = opened(tmp_path, epoch(0))
    assert len(stored_names(store, "offsets")) == 3
    decide(files, epoch(1, older=["names-a"]))
    # Files that are not chunks belong to other sources.
    assert stored_names(store, "offsets") == ["names-a", "other-things"]


def test_deletes_unfinished_state_files(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    Manifests(store).create(epoch(0, ["000-000000000000-a"]))
    store.put("state/000-000000000000-a", b"state")
    half = tmp_path / "state" / ".tidegate-123-0123456789abcdef"
    half.write_bytes(b"sta")
    files = opened(tmp_path, epoch(0))
    assert not half.exists()
    half.write_bytes(b"sta")
    decide(files, epoch(1, ["000-000000000000-a"]))
    assert not half.exists() and stored_names(store, "state") == ["000-000000000000-a"]


def test_named_checkpoint_keeps_its_name_chunks(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.store.put("offsets/s/names-a", b"[]")
    decide(files, epoch(0, older=["names-a"]))
    files.manifests.name_newest("x")
    for number in range(1, 5):
        decide(files, epoch(number))
    assert stored_names(files.store, "offsets") == ["names-a"]
    opened(tmp_path, epoch(4))
    assert stored_names(files.store, "offsets") == ["names-a"]


def test_long_running_source_keeps_few_name_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_RECENT", 4)
    folder = tmp_path / "in"
    folder.mkdir()
    files = opened(tmp_path / "pipeline", retained=3)
    source = files_source(folder, tmp_path / "pipeline" / "offsets" / "s")
    offset: Any = None
    for number in range(300):
        (folder / f"{number:03d}.json").write_text("{}")
        input_range = source.plan_range(offset, 1)
        assert input_range is not None
        offset = input_range.offset
        stream = StreamState("x", offsets={"s": offset})
        decide(files, replace(EMPTY, epoch=number, streams={"t": stream}))
        source.on_commit(offset)
    chunks = stored_names(files.store, "offsets")
    assert set(offset["older"]) <= set(chunks) and len(chunks) < 2 * 8 + 3
    assert (
        files_source(folder, tmp_path / "pipeline" / "offsets" / "s").plan_range(offset, 1) is None
    )


def test_epoch_does_not_list_the_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listings of object stores are slow and cost money."""
    listed: Counter[str] = Counter()
    real = LocalStore.list

    def counted(self: LocalStore, folder: str = "") -> Any:
        listed[folder] += 1
        return real(self, folder)

    harness = PipelineHarness(tmp_path, streams=1)
    running = harness.run(until_end=False)
    harness.insert(1, 2)
    running.wait(30)
    monkeypatch.setattr(LocalStore, "list", counted)
    harness.insert(*range(3, 13))
    running.wait(30)
    monkeypatch.undo()
    running.stop()
    assert harness.epochs() == [9, 10, 11]
    assert [folder for folder in listed if "manifests" in folder or "state" in folder] == []
