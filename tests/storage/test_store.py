"""The contract of `Store`, on a disk and on an object store."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.storage import (
    AlreadyExists,
    NotFound,
    RangedFile,
    StorageError,
    Store,
    open_store,
    require_conditional_writes,
)

ODD_NAMES = [
    "with blanks ",
    "ünï/çødé 水",
    "100%",
    "a%20b",
    "part[1].parquet",
    "{a,b}*?",
    "k=1/l=a:b/x",
    "q?x#y&z",
    "back\\slash",
    "...",
    ".hidden",
    "+~^`'\"<>|;",
]


def names(store: Store, folder: str = "") -> list[str]:
    return [item.name for item in store.list(folder)]


def test_returns_content_that_was_put(store: Store) -> None:
    store.put_new("a/b/c", b"123")
    assert store.get("a/b/c") == b"123"
    assert store.exists("a/b/c")
    assert store.size("a/b/c") == 3
    assert store.get_range("a/b/c", 1, 1) == b"2"


def test_missing_files_raise_not_found(store: Store) -> None:
    assert store.list() == []
    assert not store.exists("a")
    for read in (store.get, store.size, store.map, lambda name: store.get_range(name, 0, 1)):
        with pytest.raises(NotFound) as caught:
            read("a/b")
        assert caught.value.uri == store.uri + "/a/b"


def test_folders_are_not_files(store: Store) -> None:
    store.put_new("a/b", b"1")
    assert not store.exists("a")
    for read in (store.get, store.size, store.map, lambda name: store.get_range(name, 0, 1)):
        with pytest.raises(NotFound):
            read("a")


def test_range_ends_at_end_of_file(store: Store) -> None:
    store.put_new("a", b"0123456789")
    assert store.get_range("a", 8, 5) == b"89"
    assert store.get_range("a", 10, 5) == b""
    assert store.get_range("a", 50, 5) == b""
    assert store.get_range("a", 3, 0) == b""


def test_put_new_rejects_existing_name(store: Store) -> None:
    store.put_new("m/1", b"first")
    with pytest.raises(AlreadyExists) as caught:
        store.put_new("m/1", b"second")
    assert store.get("m/1") == b"first"
    assert caught.value.code == "TG-608"
    assert not caught.value.retryable
    assert store.list_unfinished() == []


def test_put_replaces_content(store: Store) -> None:
    store.put("a", b"one")
    store.put("a", b"other")
    assert store.get("a") == b"other"
    assert names(store) == ["a"]


def test_stores_empty_files(store: Store) -> None:
    store.put_new("a", b"")
    assert store.get("a") == b""
    assert store.size("a") == 0
    assert store.map("a").to_pybytes() == b""


def test_lists_folders_not_name_prefixes(store: Store) -> None:
    for name in ("a/1", "a/b/2", "ab/3", "a.txt", "z"):
        store.put_new(name, name.encode())
    assert names(store) == ["a.txt", "a/1", "a/b/2", "ab/3", "z"]
    assert names(store, "a") == ["a/1", "a/b/2"]
    assert names(store, "a/b") == ["a/b/2"]
    assert names(store, "a.txt") == []
    assert names(store, "none") == []
    assert [item.size for item in store.list("a")] == [3, 5]
    assert all(item.modified_us > 1_600_000_000_000_000 for item in store.list())


@pytest.mark.parametrize("name", ODD_NAMES)
def test_accepts_special_characters_in_names(store: Store, name: str) -> None:
    store.put_new(name, b"odd")
    assert names(store) == [name]
    assert store.get(name) == b"odd"
    assert store.map(name).to_pybytes() == b"odd"
    with pytest.raises(AlreadyExists):
        store.put_new(name, b"again")
    store.move_new(name, f"moved/{name}")
    assert names(store) == [f"moved/{name}"]
    inner = store.child("folder").child(name)
    inner.put_new(name, b"below")
    assert names(inner) == [name]
    assert names(store, f"folder/{name}") == [f"folder/{name}/{name}"]
    assert open_store(inner.uri).local == store.local


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "./a", "a/../b", "..", "a\0b"])
def test_rejects_names_outside_the_store(store: Store, name: str) -> None:
    for use in (store.get, store.exists, store.writer, store.child, lambda n: store.delete([n])):
        with pytest.raises(ValueError, match="not a valid file name"):
            use(name)


def test_child_is_a_store_of_a_folder(store: Store) -> None:
    child = store.child("a").child("b")
    child.put_new("c", b"1")
    assert store.get("a/b/c") == b"1"
    assert child.uri == store.uri + "/a/b"
    assert names(child) == ["c"]
    assert names(store.child("a")) == ["b/c"]


def test_delete_ignores_missing_files(store: Store) -> None:
    for name in ("a/1", "a/2", "b/1"):
        store.put_new(name, b"1")
    store.delete(["a/1", "gone", "no/where", "a/2/3"])
    assert names(store) == ["a/2", "b/1"]
    store.delete([])
    store.delete(iter(["a/2"]))
    store.put_new("a/2", b"2")
    assert store.get("a/2") == b"2"


def test_delete_all_removes_one_folder(store: Store) -> None:
    for name in ("a/1", "a/b/2", "ab/1", "c"):
        store.put_new(name, b"1")
    store.delete_all("a")
    assert names(store) == ["ab/1", "c"]
    store.delete_all("none")
    store.delete_all("c")
    assert names(store) == ["ab/1", "c"]
    store.delete_all("")
    assert names(store) == []
    store.put_new("a/1", b"2")
    assert names(store) == ["a/1"]


def test_deletes_more_files_than_fit_in_one_request(store: Store) -> None:
    count = 1100
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda index: store.put(f"d/{index}", b""), range(count)))
    assert len(store.list()) == count
    store.delete_all("d")
    assert store.list() == []


def test_move_is_idempotent(store: Store) -> None:
    store.put_new("staged/x", b"rows")
    for _ in range(3):
        store.move_new("staged/x", "final/part/x")
        store.sync(["final/part", "final", "none"])
        assert names(store) == ["final/part/x"]
    assert store.get("final/part/x") == b"rows"


def test_move_finishes_interrupted_move(store: Store) -> None:
    store.put_new("staged/x", b"rows")
    store.put_new("final/x", b"rows")
    store.move_new("staged/x", "final/x")
    assert names(store) == ["final/x"]


def test_move_never_replaces_other_content(store: Store) -> None:
    store.put_new("staged/x", b"rows")
    store.put_new("final/x", b"other rows")
    with pytest.raises(AlreadyExists):
        store.move_new("staged/x", "final/x")
    assert store.get("final/x") == b"other rows"
    assert store.get("staged/x") == b"rows"


def test_move_of_missing_file_raises_not_found(store: Store) -> None:
    with pytest.raises(NotFound) as caught:
        store.move_new("staged/x", "final/x")
    assert caught.value.uri == store.uri + "/staged/x"
    assert names(store) == []


def test_concurrent_moves_have_one_result(store: Store) -> None:
    for index in range(20):
        store.put_new(f"staged/{index}", b"%d" % index)

    def move_all(_: int) -> None:
        for index in range(20):
            store.move_new(f"staged/{index}", f"final/{index}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(move_all, range(4)))
    assert sorted(names(store)) == sorted(f"final/{index}" for index in range(20))
    assert store.get("final/7") == b"7"


def test_file_appears_when_writer_is_closed(store: Store) -> None:
    with store.writer("a/b") as writer:
        assert writer.write(b"one") == 3
        assert writer.write(memoryview(b"two")) == 3
        assert writer.tell() == 6
        assert names(store) == []
    assert writer.closed
    assert store.get("a/b") == b"onetwo"
    assert store.list_unfinished() == []
    writer.close()
    writer.abort()
    assert store.get("a/b") == b"onetwo"
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"more")


@pytest.mark.parametrize("parts", [1, 25])
def test_failed_writer_leaves_no_file(store: Store, parts: int) -> None:
    with pytest.raises(KeyError), store.writer("a") as writer:
        for _ in range(parts):
            writer.write(bytes(1 << 20))
        raise KeyError
    assert writer.closed
    assert store.list() == store.list_unfinished() == []
    store.put_new("a", b"1")


def test_writer_accepts_large_files(store: Store) -> None:
    parts = [bytes([index]) * (3 << 20) for index in range(10)]
    with store.writer("big") as writer:
        for part in parts:
            writer.write(part)
    assert store.get("big") == b"".join(parts)
    assert store.size("big") == 30 << 20
    assert store.map("big").to_pybytes() == b"".join(parts)
    with pytest.raises(AlreadyExists), store.writer("big") as writer:
        for part in parts:
            writer.write(part)


def test_writer_rejects_existing_name(store: Store) -> None:
    store.put_new("a", b"old")
    with pytest.raises(AlreadyExists), store.writer("a") as writer:
        writer.write(b"new")
    assert store.get("a") == b"old"
    assert store.list_unfinished() == []


def test_arrow_writes_to_writer(store: Store) -> None:
    table = pa.table({"n": list(range(1000)), "s": [str(n) for n in range(1000)]})
    with store.writer("t.parquet") as writer:
        pq.write_table(table, writer)
    assert pq.read_table(pa.BufferReader(store.map("t.parquet"))) == table
    with store.writer("t.arrow") as writer, pa.ipc.new_file(writer, table.schema) as file:
        file.write_table(table)
    assert pa.ipc.open_file(store.map("t.arrow")).read_all() == table


def test_map_stays_valid_after_delete(store: Store) -> None:
    store.put_new("a", b"x" * 10_000)
    buffer = store.map("a")
    store.delete(["a"])
    assert buffer.to_pybytes() == b"x" * 10_000
    with pytest.raises(NotFound):
        store.map("a")
    store.put_new("a", b"y" * 10_000)
    assert store.map("a").to_pybytes() == b"y" * 10_000


def test_map_is_cached(store: Store) -> None:
    store.put_new("a", b"x" * 10_000)
    assert store.map("a").address == store.map("a").address


def test_exactly_one_thread_creates_a_name(store: Store) -> None:
    def create(number: int) -> bool:
        try:
            store.put_new("manifest", b"%d" % number)
        except AlreadyExists:
            return False
        return True

    for _ in range(5):
        with ThreadPoolExecutor(8) as pool:
            creators = [
                number for number, created in enumerate(pool.map(create, range(8))) if created
            ]
        assert len(creators) == 1
        assert store.get("manifest") == b"%d" % creators[0]
        store.delete(["manifest"])
    assert store.list_unfinished() == []


def test_accepts_store_with_conditional_writes(store: Store) -> None:
    require_conditional_writes(store)
    assert store.list() == store.list_unfinished() == []


def test_rejects_store_without_conditional_writes(store: Store) -> None:
    class UnconditionalStore:
        uri = store.uri
        put_new = staticmethod(store.put)
        delete = staticmethod(store.delete)

    with pytest.raises(StorageError, match="replaces existing objects"):
        require_conditional_writes(UnconditionalStore())  # type: ignore[arg-type]


def test_same_uri_returns_same_store(local: Store) -> None:
    assert open_store(local.uri) is open_store(str(local.local_path("a").parent) + "/")


def test_ranged_file_reads_parquet(store: Store) -> None:
    rows = pa.table({"a": range(50_000)})
    with store.writer("a.parquet") as out:
        pq.write_table(rows, out, row_group_size=10_000)
    file = RangedFile(store, "a.parquet", store.size("a.parquet"))
    parquet = pq.ParquetFile(pa.PythonFile(file, "r"))
    assert (parquet.metadata.num_rows, parquet.metadata.num_row_groups) == (50_000, 5)
    assert parquet.read_row_group(4).column("a").to_pylist() == list(range(40_000, 50_000))
    assert file.seek(-4, os.SEEK_END) == file.tell() == store.size("a.parquet") - 4
    assert (file.read(), file.read(1)) == (b"PAR1", b"")
