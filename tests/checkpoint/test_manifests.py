"""The line of manifests: the newest whole one is the truth, and each epoch is decided once."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.manifests import Manifests
from tidegate.errors import DataDirectoryError
from tidegate.storage import open_store

FIRST = Manifest(0, 0, 16, 1)


def manifests(path: Path, max_retained: int = 3) -> Manifests:
    return Manifests(open_store(str(path)), max_retained)


def filled(path: Path, *epochs: int, generation: int = 0) -> Manifests:
    found = manifests(path)
    for epoch in epochs:
        found.create(replace(FIRST, generation=generation, epoch=epoch))
    return found


def file(path: Path, epoch: int, generation: int = 0) -> Path:
    return path / "manifests" / f"{generation:03d}-{epoch:012d}.json"


def newest(path: Path) -> int | None:
    found = manifests(path).newest().manifest
    return found.epoch if found is not None else None


def test_nothing_is_there_before_the_first_one(tmp_path: Path) -> None:
    found = manifests(tmp_path).newest()
    assert found.manifest is None and found.skipped == ()


def test_the_newest_is_the_last_epoch_of_the_last_generation(tmp_path: Path) -> None:
    filled(tmp_path, 8, 9, 10)
    assert newest(tmp_path) == 10
    filled(tmp_path, 4, generation=1)
    assert newest(tmp_path) == 4
    filled(tmp_path, 2, generation=10)
    assert newest(tmp_path) == 2


def test_other_files_in_the_folder_are_nobodys_manifests(tmp_path: Path) -> None:
    found = filled(tmp_path, 1)
    for name in ("notes.txt", "000-1.json.bak", "x-y.json"):
        (tmp_path / "manifests" / name).write_text("{}")
    assert len(found.names()) == 1 and newest(tmp_path) == 1


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_one_is_passed_over_and_said(tmp_path: Path, damage: str) -> None:
    filled(tmp_path, 1, 2, 3)
    whole = file(tmp_path, 3).read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    file(tmp_path, 3).write_bytes({"flip": flipped, "cut": whole[:middle], "empty": b""}[damage])
    found = manifests(tmp_path).newest()
    assert found.manifest is not None and found.manifest.epoch == 2
    (skipped,) = found.skipped
    assert skipped.name == "manifests/000-000000000003.json" and skipped.reason


def test_a_missing_one_is_as_if_it_had_never_been(tmp_path: Path) -> None:
    filled(tmp_path, 1, 2, 3)
    file(tmp_path, 3).unlink()
    found = manifests(tmp_path).newest()
    assert found.manifest is not None and (found.manifest.epoch, found.skipped) == (2, ())


def test_if_none_can_be_used_nothing_is_guessed(tmp_path: Path) -> None:
    filled(tmp_path, 1, 2)
    for epoch in (1, 2):
        file(tmp_path, epoch).write_bytes(b"{")
    with pytest.raises(DataDirectoryError) as caught:
        manifests(tmp_path).newest()
    assert (
        caught.value.code == "TG-605" and "none of the newest 2 manifests" in caught.value.message
    )
    assert "put back a copy" in (caught.value.hint or "")
    assert file(tmp_path, 1).exists() and file(tmp_path, 2).exists()


def test_an_epoch_is_decided_once(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    other = replace(FIRST, epoch=1, now_us=99)
    with pytest.raises(DataDirectoryError) as caught:
        manifests(tmp_path).create(other)
    assert caught.value.code == "TG-602" and "epoch 1" in caught.value.message
    found = manifests(tmp_path).newest().manifest
    assert found is not None and found.now_us == 1


DECIDE = """
import sys
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.manifests import Manifests
from tidegate.errors import DataDirectoryError
from tidegate.storage import open_store
manifests = Manifests(open_store(sys.argv[1]))
mine = []
sys.stdin.readline()
for epoch in range(50):
    try:
        manifests.create(Manifest(0, epoch, 16, int(sys.argv[2])))
        mine.append(epoch)
    except DataDirectoryError as error:
        assert error.code == "TG-602"
print(mine)
"""


def test_of_two_processes_one_decides_each_epoch(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", DECIDE, str(tmp_path), str(number)],
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
    committed = [set(json.loads(process.communicate()[0])) for process in processes]
    assert not committed[0] & committed[1] and committed[0] | committed[1] == set(range(50))
    found = manifests(tmp_path)
    for name in found.names():
        manifest = found.load(name)
        assert manifest.epoch in committed[manifest.now_us]


def test_only_the_newest_few_are_kept(tmp_path: Path) -> None:
    found = filled(tmp_path, *range(10))
    found.expire()
    assert [m.epoch for m in found.kept()] == [9, 8, 7]
    manifests(tmp_path, max_retained=1).expire()
    assert [m.epoch for m in found.kept()] == [9]


def test_damaged_ones_are_removed_when_they_are_old(tmp_path: Path) -> None:
    found = filled(tmp_path, 0, 1, 2, 3)
    file(tmp_path, 0).write_bytes(b"{")
    file(tmp_path, 2).write_bytes(b"{")
    assert [m.epoch for m in found.kept()] == [3, 1]
    found.expire()
    assert [n[-6:] for n in found.names()] == ["1.json", "2.json", "3.json"]


def test_older_generations_expire_too(tmp_path: Path) -> None:
    filled(tmp_path, 7, 8, 9)
    found = filled(tmp_path, 4, 5, generation=1)
    found.expire()
    assert [(m.generation, m.epoch) for m in found.kept()] == [(1, 5), (1, 4), (0, 9)]


def test_what_was_created_without_an_answer_is_created_again(tmp_path: Path) -> None:
    found = Manifests(open_store(str(tmp_path)))
    manifest = Manifest(0, 0, 16, 1)
    found.create(manifest)
    found.create(manifest, again=True)
    with pytest.raises(DataDirectoryError, match="another process has decided"):
        found.create(replace(manifest, now_us=2), again=True)
