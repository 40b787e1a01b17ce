"""Leases on object stores: one holder, and a successor of one that is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.errors import DataDirectoryError
from tidegate.runtime.directory import LEASES, Lease
from tidegate.storage import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "data"))


def numbers(store: Store) -> list[str]:
    return [item.name for item in store.child(LEASES).list()]


def held_by(store: Store, machine: str, process: int, number: int = 4) -> None:
    about = {"process": [machine, process], "host": "elsewhere", "beat": 0}
    store.child(LEASES).put(f"{number:012d}.json", json.dumps(about).encode())


def test_a_lease_has_one_holder_and_then_another(store: Store) -> None:
    first, second = Lease(store), Lease(store)
    first.take()
    with pytest.raises(DataDirectoryError, match=f"in use by process {os.getpid()} on ") as caught:
        second.take()
    assert caught.value.code == "TG-602"
    first.require_held()
    first.release()
    second.take()
    assert numbers(store) == ["000000000002.json"]
    second.release()


def test_a_holder_elsewhere_is_given_time_to_say_that_it_lives(store: Store) -> None:
    held_by(store, "another machine", 1)
    slept: list[float] = []

    def beats(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            store.child(LEASES).put("000000000004.json", b'{"process": ["another machine", 1]}')

    with pytest.raises(DataDirectoryError, match="in use by process 1 on elsewhere"):
        Lease(store, beat=5, patience=20, sleep=beats).take()
    slept.clear()
    lease = Lease(store, beat=5, patience=20, sleep=slept.append)
    lease.take()
    assert sum(slept) >= 20
    assert numbers(store) == ["000000000005.json"]
    lease.release()


def test_a_holder_of_this_machine_that_has_ended_is_not_waited_for(store: Store) -> None:
    program = "import sys\nfrom tidegate.runtime.directory import Lease\nfrom tidegate.storage import open_store\nimport os\nLease(open_store(sys.argv[1])).take()\nos._exit(9)"
    subprocess.run([sys.executable, "-c", program, store.uri], check=False)
    lease = Lease(store, sleep=lambda _: pytest.fail("it waits"))
    lease.take()
    assert numbers(store) == ["000000000002.json"]
    lease.release()


def test_a_holder_that_was_only_slow_learns_that_it_has_a_successor(store: Store) -> None:
    slow = Lease(store)
    slow.take()
    held_by(store, "another machine", 1, number=2)
    with pytest.raises(DataDirectoryError, match="has taken over the data directory") as caught:
        slow.require_held()
    assert caught.value.code == "TG-602"
    slow.release()
    newest = json.loads(store.child(LEASES).get("000000000002.json"))
    assert newest["process"] == ["another machine", 1]


def test_of_two_that_take_over_one_succeeds(store: Store) -> None:
    held_by(store, "another machine", 1)
    one, other = Lease(store), Lease(store)

    def faster(_: float) -> None:
        one._sleep = other._sleep = lambda _: None
        other.take()

    one._sleep = faster
    with pytest.raises(DataDirectoryError, match="in use by "):
        one.take()
    other.require_held()
    other.release()
