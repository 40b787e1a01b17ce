"""A store on a disk that is full, read-only, or shared with processes that are killed."""

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

from tidegate.storage import NotFound, StorageError, Store, open_store
from tidegate.storage.local import _MAX_MAPPED_FILES, Disk, _mapped, use_disk

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
from tidegate.storage import AlreadyExists, open_store
store, me = open_store(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for number in range(100):
    try:
        store.put_new(f"m/{number}", me.encode())
    except AlreadyExists:
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


def test_files_are_complete_or_absent_after_kill(local: Store) -> None:
    dice = random.Random(7)
    acknowledged = 0
    for attempt in range(8):
        process = start(PUT_UNTIL_KILLED, local.uri, str(attempt))
        assert process.stdout is not None
        lines = dice.randint(1, 12)
        output = [process.stdout.readline().strip() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        output += process.stdout.read().split()
        process.wait()
        acknowledged += len(output) - 1
        names = {item.name for item in local.list(str(attempt))}
        assert {f"{attempt}/{number}" for number in output[1:]} <= names
    for item in local.list():
        number = int(item.name.split("/")[1])
        assert local.get(item.name) == number.to_bytes(4, "big") * 50_000
    assert acknowledged > 8
    local.delete(item.name for item in local.list_unfinished())
    assert local.list_unfinished() == []


def test_exactly_one_process_creates_a_name(local: Store) -> None:
    processes = [start(RACE, local.uri, str(number)) for number in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    created_by = [process.communicate()[0].split() for process in processes]
    assert sorted(int(number) for numbers in created_by for number in numbers) == list(range(100))
    for process, numbers in enumerate(created_by):
        for number in numbers:
            assert local.get(f"m/{number}") == b"%d" % process


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    mount = subprocess.run(command, capture_output=True, text=True, check=False)
    if mount.returncode != 0:
        pytest.skip(f"a disk of 1 MB cannot be mounted here: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_reports_full_disk_and_leaves_no_files(small_disk: Path) -> None:
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
    assert store.list_unfinished() == []
    store.delete(["a/1"])
    store.put_new("a/2", bytes(600_000))


def test_reports_read_only_disk(small_disk: Path) -> None:
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
    """Return a folder without write permission; root switches to an unprivileged user for it."""
    folder = Path(tempfile.mkdtemp())
    (folder / "file").write_bytes(b"1")
    (folder / "closed").mkdir(mode=0)
    folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield folder
    if root:
        os.seteuid(0)
    folder.chmod(0o755)
    (folder / "closed").rmdir()
    (folder / "file").unlink()
    folder.rmdir()


def test_reports_missing_permission(forbidden: Path) -> None:
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


class FailingDisk(Disk):
    """A disk on which one operation fails."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__()

        def fail(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        setattr(self, step, fail)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("step", ["create", "write", "sync", "link", "make_folder", "sync_folder"])
def test_failed_operation_leaves_no_files(local: Store, step: str, number: int) -> None:
    previous = use_disk(FailingDisk(step, number))
    try:
        with pytest.raises(StorageError, match=os.strerror(number)) as caught:
            local.put_new("a/b", b"1")
    finally:
        use_disk(previous)
    assert caught.value.retryable == (number == errno.ESTALE)
    assert local.list_unfinished() == []
    # The file may exist only if the last operation, the sync of its folder, failed.
    assert local.list() == [] or step == "sync_folder"


def test_lists_and_deletes_ten_thousand_files(local: Store) -> None:
    for folder in range(10):
        local.local_path(f"d/{folder}").mkdir(parents=True)
        for number in range(1000):
            local.local_path(f"d/{folder}/{number}").touch()
    assert len(local.list("d")) == 10_000
    assert len(local.list("d/3")) == 1000
    local.delete_all("d")
    assert local.list() == []
    assert not local.local_path("d").exists()


def test_listing_ignores_files_deleted_meanwhile(
    local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/1", "a/2", "b/1", "c"):
        local.put_new(name, b"1")
    scan = os.scandir

    deleted_while_listing = {"store": ["a/1", "a/2"], "b": ["b/1"]}

    def scan_and_delete(path: str) -> list[os.DirEntry[str]]:
        entries = list(scan(path))
        for name in deleted_while_listing[Path(path).name]:
            local.local_path(name).unlink()
        local.local_path("a").rmdir() if path.endswith("store") else None
        return entries

    monkeypatch.setattr(os, "scandir", scan_and_delete)
    assert [item.name for item in local.list()] == ["c"]


def test_delete_removes_empty_folders_but_not_the_store(local: Store) -> None:
    local.put_new("a/b/c", b"1")
    local.put_new("a/d", b"1")
    local.delete(["a/b/c"])
    assert not local.local_path("a/b").exists()
    local.delete(["a/d"])
    assert not local.local_path("a").exists()
    assert Path(local.local_path("a").parent).exists()


def test_creates_a_removed_folder_again(local: Store) -> None:
    local.put_new("a/b/1", b"1")
    subprocess.run(["rm", "-r", str(local.local_path("a"))], check=True)
    local.put_new("a/b/2", b"2")
    assert local.get("a/b/2") == b"2"
    local.put_new("s", b"3")
    subprocess.run(["rm", "-r", str(local.local_path("a"))], check=True)
    local.move_new("s", "a/b/3")
    assert local.get("a/b/3") == b"3"


def test_unfinished_files_are_not_listed(local: Store) -> None:
    writer = local.writer("a/b")
    writer.write(b"1")
    assert local.list() == []
    assert len(local.list_unfinished()) == len(local.list_unfinished("a")) == 1
    local.put_new("a/c", b"1")
    local.delete_all("")
    assert local.list_unfinished() == []
    with pytest.raises(StorageError):
        writer.close()
    assert local.list() == []


def test_listing_follows_links_once(local: Store) -> None:
    local.put_new("a/1", b"1")
    root = local.local_path("a").parent
    (root / "a" / "up").symlink_to(root)
    (root / "b").symlink_to(root / "a")
    (root / "broken").symlink_to(root / "none")
    os.mkfifo(root / "pipe")
    assert [item.name for item in local.list()] == ["a/1", "b/1"]
    local.delete_all("b")
    assert local.get("a/1") == b"1"


def test_unmaps_deleted_files(local: Store) -> None:
    for number in range(_MAX_MAPPED_FILES + 10):
        local.put_new(str(number), b"%d" % number)
        assert local.map(str(number)).to_pybytes() == b"%d" % number
    assert len(_mapped) == _MAX_MAPPED_FILES
    local.delete_all("")
    local.put_new("last", b"last")
    local.map("last")
    assert list(_mapped) == [str(local.local_path("last"))]


def test_map_does_not_copy(local: Store) -> None:
    import pyarrow as pa

    local.put_new("big", bytes(50 << 20))
    previous = pa.total_allocated_bytes()
    buffer = local.map("big")
    assert buffer.size == 50 << 20
    assert pa.total_allocated_bytes() == previous


def test_file_cannot_be_used_as_folder(local: Store) -> None:
    local.put_new("a", b"1")
    with pytest.raises(StorageError, match="Not a directory"):
        local.put_new("a/b", b"1")
    with pytest.raises(NotFound):
        local.get("a/b")


def test_import_loads_no_heavy_modules() -> None:
    program = """
import sys
import tidegate.storage
tidegate.storage.open_store(sys.argv[1]).list()
heavy = ("obstore", "pyarrow", "pyspark", "numpy", "pandas", "tempfile", "shutil", "hashlib")
print([name for name in heavy if name in sys.modules])
"""
    folder = tempfile.gettempdir()
    command = [sys.executable, "-I", "-S", "-c", "import sys; sys.path.append(%r)\n%s"]
    root = str(Path(__file__).parents[2])
    command[-1] = command[-1] % (root, program)
    process = subprocess.run(
        [*command, folder + "/none"], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"
