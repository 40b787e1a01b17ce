"""What a disk can do to a store: it fills up, forbids, is shared with others that die."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.storage import NotThere, StorageError, Store, open_store
from tidegate.storage import local as disk
from tidegate.storage.local import _MAPPED_FILES, _maps

PUT_UNTIL_KILLED = """
import sys
from tidegate.storage import open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
for number in range(1_000_000):
    store.put_new(f"{sys.argv[2]}/{number}", number.to_bytes(4, "big") * 50_000)
    print(number, flush=True)
"""
RACE = """
import sys
from tidegate.storage import AlreadyThere, open_store
store, me = open_store(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for number in range(100):
    try:
        store.put_new(f"m/{number}", me.encode())
    except AlreadyThere:
        continue
    print(number, flush=True)
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_files_killed_half_way_are_whole_or_not_there(local: Store) -> None:
    dice = random.Random(7)
    told = 0
    for attempt in range(8):
        process = start(PUT_UNTIL_KILLED, local.uri, str(attempt))
        assert process.stdout is not None
        lines = dice.randint(1, 12)
        seen = [process.stdout.readline().strip() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        seen += process.stdout.read().split()
        process.wait()
        told += len(seen) - 1
        there = {item.name for item in local.list(str(attempt))}
        assert {f"{attempt}/{number}" for number in seen[1:]} <= there
    for item in local.list():
        number = int(item.name.split("/")[1])
        assert local.get(item.name) == number.to_bytes(4, "big") * 50_000
    assert told > 8
    local.delete(item.name for item in local.asides())
    assert local.asides() == []


def test_one_of_many_processes_creates(local: Store) -> None:
    processes = [start(RACE, local.uri, str(number)) for number in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    won = [process.communicate()[0].split() for process in processes]
    assert sorted(int(number) for mine in won for number in mine) == list(range(100))
    for me, mine in enumerate(won):
        for number in mine:
            assert local.get(f"m/{number}") == b"%d" % me


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"a disk of 1 MB cannot be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    store = open_store(str(small_disk))
    store.put_new("a/1", bytes(500_000))
    for use in (store.put_new, store.put):
        with pytest.raises(StorageError, match="cannot be written: No space left") as caught:
            use("a/2", bytes(600_000))
        assert caught.value.uri == store.uri + "/a/2"
        assert not caught.value.retryable
        assert caught.value.hint is not None
    with pytest.raises(StorageError, match="No space left"), store.writer("a/2") as writer:
        for _ in range(100):
            writer.write(bytes(10_000))
    assert [item.name for item in store.list()] == ["a/1"]
    assert store.asides() == []
    store.delete(["a/1"])
    store.put_new("a/2", bytes(600_000))


def test_a_disk_that_is_read_only(small_disk: Path) -> None:
    store = open_store(str(small_disk))
    store.put_new("a/1", b"1")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    changes = (
        lambda: store.put_new("a/2", b""),
        lambda: store.put("a/1", b""),
        lambda: store.delete(["a/1"]),
        lambda: store.delete_all("a"),
        lambda: store.move_new("a/1", "b/1"),
    )
    for change in changes:
        with pytest.raises(StorageError, match="Read-only file system") as caught:
            change()
        assert not caught.value.retryable
    assert store.get("a/1") == b"1"


@pytest.fixture
def forbidden() -> Iterator[Path]:
    """A folder that whoever runs this must not write to; root becomes nobody for it."""
    place = Path(tempfile.mkdtemp())
    (place / "file").write_bytes(b"1")
    (place / "closed").mkdir(mode=0)
    place.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield place
    if root:
        os.seteuid(0)
    place.chmod(0o755)
    (place / "closed").rmdir()
    (place / "file").unlink()
    place.rmdir()


def test_a_folder_that_must_not_be_written(forbidden: Path) -> None:
    store = open_store(str(forbidden))
    for change in (
        lambda: store.put_new("new", b""),
        lambda: store.put("file", b""),
        lambda: store.delete(["file"]),
        lambda: store.put_new("a/b", b""),
        lambda: store.list("closed"),
    ):
        with pytest.raises(StorageError, match="Permission denied") as caught:
            change()
        assert not caught.value.retryable
    assert store.get("file") == b"1"


class Failing(disk.Disk):
    """A disk on which one kind of thing goes wrong."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__()

        def fail(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        setattr(self, step, fail)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("step", ["create", "write", "sync", "link", "make_folder", "sync_folder"])
def test_every_step_may_fail(local: Store, step: str, number: int) -> None:
    before = disk.use(Failing(step, number))
    try:
        with pytest.raises(StorageError, match=os.strerror(number)) as caught:
            local.put_new("a/b", b"1")
    finally:
        disk.use(before)
    assert caught.value.retryable == (number == errno.ESTALE)
    assert local.asides() == []
    # When only the last sync failed nobody knows; everything else has left nothing.
    assert local.list() == [] or step == "sync_folder"


def test_ten_thousand_files(local: Store) -> None:
    for folder in range(10):
        local.local_path(f"d/{folder}").mkdir(parents=True)
        for number in range(1000):
            local.local_path(f"d/{folder}/{number}").touch()
    assert len(local.list("d")) == 10_000
    assert len(local.list("d/3")) == 1000
    local.delete_all("d")
    assert local.list() == []
    assert not local.local_path("d").exists()


def test_files_that_vanish_while_listing(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/1", "a/2", "b/1", "c"):
        local.put_new(name, b"1")
    scan = os.scandir

    gone = {"place": ["a/1", "a/2"], "b": ["b/1"]}

    def vanishing(path: str) -> list[os.DirEntry[str]]:
        entries = list(scan(path))
        for name in gone[Path(path).name]:
            local.local_path(name).unlink()
        local.local_path("a").rmdir() if path.endswith("place") else None
        return entries

    monkeypatch.setattr(os, "scandir", vanishing)
    assert [item.name for item in local.list()] == ["c"]


def test_empty_folders_go_but_not_the_store(local: Store) -> None:
    local.put_new("a/b/c", b"1")
    local.put_new("a/d", b"1")
    local.delete(["a/b/c"])
    assert not local.local_path("a/b").exists()
    local.delete(["a/d"])
    assert not local.local_path("a").exists()
    assert Path(local.local_path("a").parent).exists()


def test_a_folder_that_somebody_removes_is_made_again(local: Store) -> None:
    local.put_new("a/b/1", b"1")
    subprocess.run(["rm", "-r", str(local.local_path("a"))], check=True)
    local.put_new("a/b/2", b"2")
    assert local.get("a/b/2") == b"2"
    local.put_new("s", b"3")
    subprocess.run(["rm", "-r", str(local.local_path("a"))], check=True)
    local.move_new("s", "a/b/3")
    assert local.get("a/b/3") == b"3"


def test_half_written_files_are_not_listed(local: Store) -> None:
    writer = local.writer("a/b")
    writer.write(b"1")
    assert local.list() == []
    assert len(local.asides()) == len(local.asides("a")) == 1
    local.put_new("a/c", b"1")
    local.delete_all("")
    assert local.asides() == []
    with pytest.raises(StorageError):
        writer.close()
    assert local.list() == []


def test_links_are_followed_once(local: Store) -> None:
    local.put_new("a/1", b"1")
    root = local.local_path("a").parent
    (root / "a" / "up").symlink_to(root)
    (root / "b").symlink_to(root / "a")
    (root / "broken").symlink_to(root / "none")
    os.mkfifo(root / "pipe")
    assert [item.name for item in local.list()] == ["a/1", "b/1"]
    local.delete_all("b")
    assert local.get("a/1") == b"1"


def test_maps_do_not_keep_what_is_gone(local: Store) -> None:
    for number in range(_MAPPED_FILES + 10):
        local.put_new(str(number), b"%d" % number)
        assert local.map(str(number)).to_pybytes() == b"%d" % number
    assert len(_maps) == _MAPPED_FILES
    local.delete_all("")
    local.put_new("last", b"last")
    local.map("last")
    assert list(_maps) == [str(local.local_path("last"))]


def test_a_map_copies_nothing(local: Store) -> None:
    import pyarrow as pa

    local.put_new("big", bytes(50 << 20))
    before = pa.total_allocated_bytes()
    buffer = local.map("big")
    assert buffer.size == 50 << 20
    assert pa.total_allocated_bytes() == before


def test_a_file_is_not_a_folder(local: Store) -> None:
    local.put_new("a", b"1")
    with pytest.raises(StorageError, match="Not a directory"):
        local.put_new("a/b", b"1")
    with pytest.raises(NotThere):
        local.get("a/b")


def test_importing_loads_nothing_heavy() -> None:
    program = """
import sys
import tidegate.storage
tidegate.storage.open_store(sys.argv[1]).list()
heavy = ("obstore", "pyarrow", "pyspark", "numpy", "pandas", "tempfile", "shutil", "hashlib")
print([name for name in heavy if name in sys.modules])
"""
    place = tempfile.gettempdir()
    command = [sys.executable, "-I", "-S", "-c", "import sys; sys.path.append(%r)\n%s"]
    root = str(Path(__file__).parents[2])
    command[-1] = command[-1] % (root, program)
    ran = subprocess.run([*command, place + "/none"], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
