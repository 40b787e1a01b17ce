"""The manifests of a pipeline: the newest intact one, committing epochs, expiry."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.manifests import FIRST, create_manifests, open_manifests
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.manifests import Manifests
from tidegate.errors import DataDirectoryError
from tidegate.storage import open_store


def path_of(path: Path, epoch: int, generation: int = 0) -> Path:
    return path / "manifests" / f"{generation:03d}-{epoch:012d}.json"


def newest_epoch(path: Path) -> int | None:
    newest = open_manifests(path).load_newest().manifest
    return newest.epoch if newest is not None else None


def test_no_manifest_before_first_epoch(tmp_path: Path) -> None:
    newest = open_manifests(tmp_path).load_newest()
    assert newest.manifest is None and newest.skipped == ()


def test_newest_is_last_epoch_of_last_generation(tmp_path: Path) -> None:
    create_manifests(tmp_path, 8, 9, 10)
    assert newest_epoch(tmp_path) == 10
    create_manifests(tmp_path, 4, generation=1)
    assert newest_epoch(tmp_path) == 4
    create_manifests(tmp_path, 2, generation=10)
    assert newest_epoch(tmp_path) == 2


def test_ignores_other_files(tmp_path: Path) -> None:
    manifests = create_manifests(tmp_path, 1)
    for name in ("notes.txt", "000-1.json.bak", "x-y.json"):
        (tmp_path / "manifests" / name).write_text("{}")
    assert len(manifests.names()) == 1 and newest_epoch(tmp_path) == 1


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_skips_and_reports_damaged_manifest(tmp_path: Path, damage: str) -> None:
    create_manifests(tmp_path, 1, 2, 3)
    content = path_of(tmp_path, 3).read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    path_of(tmp_path, 3).write_bytes(
        {"flip": flipped, "cut": content[:middle], "empty": b""}[damage]
    )
    newest = open_manifests(tmp_path).load_newest()
    assert newest.manifest is not None and newest.manifest.epoch == 2
    (skipped,) = newest.skipped
    assert skipped.name == "manifests/000-000000000003.json" and skipped.reason


def test_falls_back_if_newest_is_missing(tmp_path: Path) -> None:
    create_manifests(tmp_path, 1, 2, 3)
    path_of(tmp_path, 3).unlink()
    newest = open_manifests(tmp_path).load_newest()
    assert newest.manifest is not None and (newest.manifest.epoch, newest.skipped) == (2, ())


def test_raises_if_all_newest_are_damaged(tmp_path: Path) -> None:
    create_manifests(tmp_path, 1, 2)
    for epoch in (1, 2):
        path_of(tmp_path, epoch).write_bytes(b"{")
    with pytest.raises(DataDirectoryError) as caught:
        open_manifests(tmp_path).load_newest()
    assert (
        caught.value.code == "TG-605" and "none of the newest 2 manifests" in caught.value.message
    )
    assert "restore the data directory from a backup" in (caught.value.hint or "")
    assert path_of(tmp_path, 1).exists() and path_of(tmp_path, 2).exists()


def test_epoch_is_committed_once(tmp_path: Path) -> None:
    create_manifests(tmp_path, 1)
    other = replace(FIRST, epoch=1, processing_time_us=99)
    with pytest.raises(DataDirectoryError) as caught:
        open_manifests(tmp_path).create(other)
    assert caught.value.code == "TG-602" and "epoch 1" in caught.value.message
    newest = open_manifests(tmp_path).load_newest().manifest
    assert newest is not None and newest.processing_time_us == 1


CREATE = """
import sys
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.manifests import Manifests
from tidegate.errors import DataDirectoryError
from tidegate.storage import open_store
manifests = Manifests(open_store(sys.argv[1]))
created = []
sys.stdin.readline()
for epoch in range(50):
    try:
        manifests.create(Manifest(0, epoch, 16, int(sys.argv[2])))
        created.append(epoch)
    except DataDirectoryError as error:
        assert error.code == "TG-602"
print(created)
"""


def test_exactly_one_process_commits_each_epoch(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CREATE, str(tmp_path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    epochs = [set(json.loads(process.communicate()[0])) for process in processes]
    assert not epochs[0] & epochs[1] and epochs[0] | epochs[1] == set(range(50))
    manifests = open_manifests(tmp_path)
    for name in manifests.names():
        manifest = manifests.load(name)
        assert manifest.epoch in epochs[manifest.processing_time_us]


def test_expire_keeps_newest_manifests(tmp_path: Path) -> None:
    manifests = create_manifests(tmp_path, *range(10))
    manifests.expire()
    assert [m.epoch for m in manifests.load_all()] == [9, 8, 7]
    open_manifests(tmp_path, max_retained=1).expire()
    assert [m.epoch for m in manifests.load_all()] == [9]


def test_expire_removes_old_damaged_manifests(tmp_path: Path) -> None:
    manifests = create_manifests(tmp_path, 0, 1, 2, 3)
    path_of(tmp_path, 0).write_bytes(b"{")
    path_of(tmp_path, 2).write_bytes(b"{")
    assert [m.epoch for m in manifests.load_all()] == [3, 1]
    manifests.expire()
    assert [n[-6:] for n in manifests.names()] == ["1.json", "2.json", "3.json"]


def test_expire_removes_older_generations(tmp_path: Path) -> None:
    create_manifests(tmp_path, 7, 8, 9)
    manifests = create_manifests(tmp_path, 4, 5, generation=1)
    manifests.expire()
    assert [(m.generation, m.epoch) for m in manifests.load_all()] == [(1, 5), (1, 4), (0, 9)]


def test_create_is_idempotent_for_retries(tmp_path: Path) -> None:
    manifests = Manifests(open_store(str(tmp_path)))
    manifest = Manifest(0, 0, 16, 1)
    manifests.create(manifest)
    manifests.create(manifest, is_retry=True)
    with pytest.raises(DataDirectoryError, match="another process has committed"):
        manifests.create(replace(manifest, processing_time_us=2), is_retry=True)


def test_manifest_expires_although_the_response_was_lost(tmp_path: Path) -> None:
    """The first attempt has created the manifest; the second one finds it."""
    manifests = open_manifests(tmp_path, 2)
    assert manifests.expire() == []
    for epoch in range(3):
        manifest = replace(FIRST, epoch=epoch)
        path_of(tmp_path, epoch).parent.mkdir(exist_ok=True)
        path_of(tmp_path, epoch).write_bytes(manifest.to_bytes())
        manifests.create(manifest, is_retry=True)
    assert manifests.expire() == ["000-000000000000"]
