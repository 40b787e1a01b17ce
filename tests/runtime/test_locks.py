"""Locks: leases on object stores are exclusive, and taken over after they have expired."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.errors import DataDirectoryError
from tidegate.runtime.directory import LEASES, DataDirectory, Lease
from tidegate.storage import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "data"))


def lease_names(store: Store) -> list[str]:
    return [item.name for item in store.child(LEASES).list()]


def put_lease(store: Store, machine: str, process: int, number: int = 4) -> None:
    content = {"process": [machine, process], "host": "elsewhere", "heartbeat": 0}
    store.child(LEASES).put(f"{number:012d}.json", json.dumps(content).encode())


def test_lease_has_one_holder_at_a_time(store: Store) -> None:
    first, second = Lease(store), Lease(store)
    first.acquire()
    with pytest.raises(DataDirectoryError, match=f"in use by process {os.getpid()} on ") as caught:
        second.acquire()
    assert caught.value.code == "TG-602"
    first.require_held()
    first.release()
    second.acquire()
    assert lease_names(store) == ["000000000002.json"]
    second.release()


def test_waits_for_expiry_of_lease_of_another_machine(store: Store) -> None:
    put_lease(store, "another machine", 1)
    sleeps: list[float] = []

    def sleep_and_renew(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 3:
            store.child(LEASES).put("000000000004.json", b'{"process": ["another machine", 1]}')

    with pytest.raises(DataDirectoryError, match="in use by process 1 on elsewhere"):
        Lease(store, heartbeat_s=5, expiry_s=20, sleep=sleep_and_renew).acquire()
    sleeps.clear()
    lease = Lease(store, heartbeat_s=5, expiry_s=20, sleep=sleeps.append)
    lease.acquire()
    assert sum(sleeps) >= 20
    assert lease_names(store) == ["000000000005.json"]
    lease.release()


def test_takes_over_lease_of_ended_process_at_once(store: Store) -> None:
    program = (
        "import os, sys\n"
        "from tidegate.runtime.directory import Lease\n"
        "from tidegate.storage import open_store\n"
        "Lease(open_store(sys.argv[1])).acquire()\n"
        "os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", program, store.uri], check=False)
    lease = Lease(store, sleep=lambda _: pytest.fail("it sleeps"))
    lease.acquire()
    assert lease_names(store) == ["000000000002.json"]
    lease.release()


def test_slow_holder_detects_its_successor(store: Store) -> None:
    slow = Lease(store)
    slow.acquire()
    put_lease(store, "another machine", 1, number=2)
    with pytest.raises(DataDirectoryError, match="has taken over the data directory") as caught:
        slow.require_held()
    assert caught.value.code == "TG-602"
    slow.release()
    newest = json.loads(store.child(LEASES).get("000000000002.json"))
    assert newest["process"] == ["another machine", 1]


def test_exactly_one_process_takes_over(store: Store) -> None:
    put_lease(store, "another machine", 1)
    first, second = Lease(store), Lease(store)

    def let_second_acquire(_: float) -> None:
        first._sleep = second._sleep = lambda _: None
        second.acquire()

    first._sleep = let_second_acquire
    with pytest.raises(DataDirectoryError, match="in use by "):
        first.acquire()
    second.require_held()
    second.release()


@pytest.mark.parametrize("error", [OSError(5, "input/output error"), KeyboardInterrupt()])
def test_failed_open_releases_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(directory: DataDirectory) -> None:
        raise error

    directory = DataDirectory(tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr(DataDirectory, "_require_format", fail)
        with pytest.raises(type(error)):
            directory.open()
    assert not directory.is_open
    directory.open()
    directory.close()
