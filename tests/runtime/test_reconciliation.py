"""Streams as they are declared now against the last manifest: what fits goes on, the rest is said."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from tidegate.checkpoint.manifest import Manifest, OperatorState, SourceState
from tidegate.errors import DataDirectoryError
from tidegate.runtime.reconciliation import (
    PipelineStream,
    late_offsets,
    reconcile,
    with_dependencies,
)

EMPTY = Manifest(0, -1, 16, 0)
BIDS = SourceState("files", {"path": "/in/bids", "format": "json"})
ASKS = SourceState("memory", {})


@dataclass(frozen=True)
class Declared(PipelineStream):
    """A stream with operators that are given by name and fingerprint."""

    given: tuple[tuple[str, str], ...] = ()

    def operators(self) -> dict[int, tuple[str, OperatorState]]:
        return {
            number: (f"{self.key}.{fingerprint}", OperatorState(self.key, name, fingerprint))
            for number, (name, fingerprint) in enumerate(self.given)
        }


def member(
    *operators: tuple[str, str],
    name: str = "S",
    on_change: str = "reject",
    sources: dict[str, SourceState] | None = None,
) -> Declared:
    given = {"bids": BIDS} if sources is None else sources
    nothing = cast(Any, None)
    return Declared(name, nothing, nothing, given, (), None, on_change, operators)


def ran(manifest: Manifest, **offsets: Any) -> Manifest:
    """The manifest of an epoch in which every operator has kept something."""
    operators = {
        key: replace(o, state_handles={"0": [key, 0, 1, 2]}, files=[key])
        for key, o in manifest.operators.items()
    }
    streams = {
        key: replace(s, offsets={**s.offsets, **{n: o for n, o in offsets.items() if o}})
        for key, s in manifest.streams.items()
    }
    return replace(manifest, epoch=manifest.epoch + 1, operators=operators, streams=streams)


def rejected(before: Manifest, *members: Declared) -> DataDirectoryError:
    with pytest.raises(DataDirectoryError) as caught:
        reconcile(before, members)
    assert caught.value.code == "TG-603"
    hint = caught.value.hint or ""
    assert all(way in hint for way in ("query of before", "another name", "restart", "continue"))
    return caught.value


def test_a_new_stream_begins_at_the_beginning_and_has_a_name_of_its_own() -> None:
    found = reconcile(EMPTY, [member(("w", "1")), member(name="T")])
    assert found.warnings == []
    assert {o.state_handles == {} for o in found.manifest.operators.values()} == {True}
    one, two = (found.manifest.streams[name] for name in ("s", "t"))
    assert one.id != two.id
    assert not any(one.offsets.values())
    assert one.sources == {"bids": BIDS}


def test_the_same_query_goes_on_where_it_was() -> None:
    before = ran(reconcile(EMPTY, [member(("w", "1"), ("j", "2"))]).manifest, bids=7)
    found = reconcile(before, [member(("w", "1"), ("j", "2"))])
    assert found.manifest == before and found.warnings == []


def test_operators_are_found_by_what_they_are_not_by_their_place() -> None:
    before = ran(reconcile(EMPTY, [member(("w", "1"), ("j", "2"))]).manifest, bids=7)
    found = reconcile(before, [member(("j", "2"), ("w", "1"))])
    assert found.manifest.operators == before.operators and found.warnings == []


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ([("w", "1")], "other operators than at its last epoch: j, w then, w now"),
        ([], "j, w then, none now"),
        ([("w", "9"), ("j", "2")], "in or below w: what is stored belongs to the query of before"),
    ],
)
def test_a_changed_query_is_rejected(now: list[tuple[str, str]], said: str) -> None:
    before = ran(reconcile(EMPTY, [member(("w", "1"), ("j", "2"))]).manifest, bids=7)
    assert said in rejected(before, member(*now)).message


def test_a_stream_that_continues_keeps_what_fits_and_says_what_does_not() -> None:
    before = ran(reconcile(EMPTY, [member(("w", "1"), ("j", "2"))]).manifest, bids=7)
    found = reconcile(before, [member(("w", "9"), ("j", "2"), ("t", "3"), on_change="continue")])
    operators = found.manifest.operators
    assert found.manifest.streams == before.streams
    assert operators.keys() == {"s.9", "s.2", "s.3"}
    assert operators["s.2"] == before.operators["s.2"]
    # Time must not go back: the operator itself forgets the rest of what it finds there.
    assert operators["s.9"].state_handles == before.operators["s.1"].state_handles
    assert operators["s.9"].files == before.operators["s.1"].files
    assert operators["s.3"].state_handles == {}
    assert [warning.code for warning in found.warnings] == ["TG-606"] * 2
    assert "operator w of the stream S" in found.warnings[0].message


def test_a_stream_that_restarts_begins_anew_under_another_name() -> None:
    before = ran(reconcile(EMPTY, [member(("w", "1"), ("j", "2"))]).manifest, bids=7)
    found = reconcile(before, [member(("w", "9"), ("j", "2"), on_change="restart")])
    stream = found.manifest.streams["s"]
    assert stream.id != before.streams["s"].id and not any(stream.offsets.values())
    assert {o.state_handles == {} for o in found.manifest.operators.values()} == {True}


@pytest.mark.parametrize("on_change", ["restart", "continue"])
def test_a_stream_that_did_not_change_goes_on_whatever_it_says(on_change: str) -> None:
    before = ran(reconcile(EMPTY, [member(("w", "1"))]).manifest, bids=7)
    found = reconcile(before, [member(("w", "1"), on_change=on_change)])
    assert found.manifest == before and found.warnings == []


def test_other_streams_are_left_as_they_are() -> None:
    both = [member(("w", "1")), member(("w", "1"), name="t")]
    before = ran(reconcile(EMPTY, both).manifest, bids=7)
    found = reconcile(before, [member(("w", "9"), on_change="restart"), both[1]])
    assert found.manifest.streams["t"] == before.streams["t"]
    assert found.manifest.operators["t.1"] == before.operators["t.1"]
    # A stream that is not declared now may come back.
    without = reconcile(before, [both[1]])
    assert without.manifest == before


def test_a_stream_that_was_run_to_its_end_is_told_so() -> None:
    manifest = reconcile(EMPTY, [member(("w", "1")), member(name="plain")]).manifest
    streams = {key: replace(stream, ended=True) for key, stream in manifest.streams.items()}
    found = reconcile(
        replace(manifest, streams=streams), [member(("w", "1")), member(name="plain")]
    )
    assert [warning.code for warning in found.warnings] == ["TG-607"]
    assert "DROP STREAM S" in (found.warnings[0].hint or "")


# Sources


def test_a_source_that_is_another_now_is_rejected() -> None:
    before = ran(reconcile(EMPTY, [member(("w", "1"))]).manifest, bids=7)
    moved = {"bids": replace(BIDS, options={**BIDS.options, "path": "/elsewhere"})}
    for on_change in ("reject", "continue"):
        error = rejected(before, member(("w", "1"), sources=moved, on_change=on_change))
        assert "path=/in/bids" in error.message and "path=/elsewhere" in error.message
        rejected(ran(reconcile(EMPTY, [member()]).manifest, bids=7), member(sources=moved))


@pytest.mark.parametrize("operators", [(), (("w", "1"),)])
def test_a_stream_that_restarts_reads_a_source_that_is_another_now_from_its_beginning(
    operators: tuple[tuple[str, str], ...],
) -> None:
    before = ran(reconcile(EMPTY, [member(*operators)]).manifest, bids=7)
    moved = {"bids": replace(BIDS, options={**BIDS.options, "path": "/elsewhere"})}
    found = reconcile(before, [member(*operators, sources=moved, on_change="restart")])
    stream = found.manifest.streams["s"]
    assert not any(stream.offsets.values()) and stream.id != before.streams["s"].id
    assert stream.sources == moved
    assert {o.state_handles == {} for o in found.manifest.operators.values()} <= {True}


def test_that_one_stream_restarts_does_not_let_another_read_on_in_a_source_that_is_another() -> (
    None
):
    both = [member(), member(name="t")]
    before = ran(reconcile(EMPTY, both).manifest, bids=7)
    moved = {"bids": replace(BIDS, options={**BIDS.options, "path": "/elsewhere"})}
    first, second = member(sources=moved, on_change="restart"), member(name="t", sources=moved)
    assert "the stream t" in rejected(before, first, second).message


def test_a_stream_that_was_away_does_not_read_on_in_a_source_that_is_another() -> None:
    both = [member(), member(name="t")]
    before = ran(reconcile(EMPTY, both).manifest, bids=7)
    moved = {"bids": replace(BIDS, options={**BIDS.options, "path": "/elsewhere"})}
    with_dependencies = reconcile(before, [member(sources=moved, on_change="restart")]).manifest
    assert (
        "the stream t"
        in rejected(ran(with_dependencies, bids=3), member(name="t", sources=moved)).message
    )


def test_a_stream_over_other_sources_is_rejected_or_goes_on_without_them() -> None:
    before = ran(reconcile(EMPTY, [member(("w", "1"))]).manifest, bids=7)
    both = {"bids": BIDS, "asks": ASKS}
    error = rejected(before, member(("w", "1"), sources=both))
    assert "it read bids" in error.message and "asks (memory)" in error.message
    found = reconcile(before, [member(("w", "1"), sources=both, on_change="continue")])
    assert found.manifest.streams["s"].offsets["bids"] == 7
    assert found.manifest.streams["s"].sources == both
    fewer = reconcile(ran(found.manifest, asks=2), [member(("w", "1"), on_change="continue")])
    assert fewer.manifest.streams["s"].offsets == {"bids": 7}
    # From here on it is the stream it is now.
    assert reconcile(ran(fewer.manifest), [member(("w", "1"))]).warnings == []


def test_a_source_that_had_no_rows_yet_is_no_other_source() -> None:
    both = {"bids": BIDS, "asks": ASKS}
    before = ran(reconcile(EMPTY, [member(("j", "1"), sources=both)]).manifest, bids=7)
    found = reconcile(before, [member(("j", "1"), sources=both)])
    assert found.manifest.streams["s"].offsets["bids"] == 7
    assert found.manifest.streams["s"].offsets.get("asks") is None


# Late rows that other streams read


def reader(on_change: str = "reject") -> Declared:
    found = member(("g", "5"), name="Late sums", on_change=on_change, sources={})
    return replace(found, late_inputs={"late": "s"})


def with_late_rows(manifest: Manifest, rows: int, *members: Declared) -> Manifest:
    """The manifest after an epoch in which so many rows had been late for the first stream."""
    operators = {
        key: replace(o, report={"late_rows": rows if o.stream == "s" else 9})
        for key, o in manifest.operators.items()
    }
    streams = dict(manifest.streams)
    for item in members:
        offsets = late_offsets(item, operators.values())
        streams[item.key] = replace(streams[item.key], offsets=offsets)
    return replace(manifest, operators=operators, streams=streams)


def test_a_reader_of_late_rows_goes_on_if_it_was_always_there() -> None:
    both = [member(("w", "1")), reader()]
    before = with_late_rows(reconcile(EMPTY, both).manifest, 3, both[1])
    assert before.streams["late sums"].offsets == {"late": {"rows": 3}}
    found = reconcile(before, both)
    assert found.manifest == before and found.warnings == []


def test_a_reader_is_told_of_late_rows_that_it_does_not_have() -> None:
    alone_before = with_late_rows(reconcile(EMPTY, [member(("w", "1"))]).manifest, 3)
    (warning,) = reconcile(alone_before, [member(("w", "1")), reader()]).warnings
    assert (warning.code, "does not have 3 rows of late" in warning.message) == ("TG-612", True)
    both = [member(("w", "1")), reader()]
    parked = with_late_rows(reconcile(EMPTY, both).manifest, 3, both[1])
    (warning,) = reconcile(with_late_rows(parked, 5), both).warnings
    assert "does not have 2 rows of late" in warning.message


def test_late_rows_of_a_stream_that_starts_over_come_again() -> None:
    both = [member(("w", "1")), reader()]
    before = with_late_rows(reconcile(EMPTY, both).manifest, 3, both[1])
    over = member(("w", "9"), on_change="restart")
    error = rejected(before, over, reader())
    assert "S starts over" not in error.message and "s starts over" in error.message
    found = reconcile(before, [over, reader("restart")])
    assert found.warnings == []
    ids = {key: stream.id for key, stream in before.streams.items()}
    assert all(stream.id != ids[key] for key, stream in found.manifest.streams.items())
    # It may have started over while the reader was not in the script.
    meanwhile = reconcile(before, [over]).manifest
    assert "come again" in rejected(meanwhile, over, reader()).message


def test_a_reader_runs_alone_with_those_whose_late_rows_it_needs() -> None:
    others = [member(name="T"), member(("w", "1"))]
    second = replace(member(name="U", sources={}), late_inputs={"later": "late sums"})
    everyone = [*others, reader(), second]
    assert [item.name for item in with_dependencies(second, everyone)] == ["S", "Late sums", "U"]
    assert with_dependencies(others[0], everyone) == [others[0]]
