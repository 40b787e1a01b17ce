"""Reconciliation of declared streams with the last manifest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from tidegate.checkpoint.manifest import Manifest, OperatorState, SourceIdentity
from tidegate.errors import DataDirectoryError
from tidegate.runtime.planning import PipelineStream, with_dependencies
from tidegate.runtime.reconciliation import late_offsets, reconcile

EMPTY = Manifest(0, -1, 16, 0)
BIDS = SourceIdentity("files", {"path": "/in/bids", "format": "json"})
ASKS = SourceIdentity("memory", {})


@dataclass(frozen=True)
class FixedStream(PipelineStream):
    """A stream with fixed operators: names and fingerprints."""

    fixed_operators: tuple[tuple[str, str], ...] = ()

    def operators(self) -> dict[int, tuple[str, OperatorState]]:
        return {
            number: (f"{self.key}.{fingerprint}", OperatorState(self.key, name, fingerprint))
            for number, (name, fingerprint) in enumerate(self.fixed_operators)
        }


def declared(
    *operators: tuple[str, str],
    name: str = "S",
    on_change: str = "reject",
    sources: dict[str, SourceIdentity] | None = None,
) -> FixedStream:
    unused = cast(Any, None)
    sources = {"bids": BIDS} if sources is None else sources
    return FixedStream(name, unused, unused, sources, (), None, on_change, operators)


def after_epoch(manifest: Manifest, **offsets: Any) -> Manifest:
    """Return the manifest after an epoch in which every operator has stored state."""
    operators = {
        key: replace(o, state_handles={"0": [key, 0, 1, 2]}, files=[key])
        for key, o in manifest.operators.items()
    }
    streams = {
        key: replace(s, offsets={**s.offsets, **{n: o for n, o in offsets.items() if o}})
        for key, s in manifest.streams.items()
    }
    return replace(manifest, epoch=manifest.epoch + 1, operators=operators, streams=streams)


def rejection(previous: Manifest, *streams: FixedStream) -> DataDirectoryError:
    with pytest.raises(DataDirectoryError) as caught:
        reconcile(previous, streams)
    assert caught.value.code == "TG-603"
    hint = caught.value.hint or ""
    is_replaced = caught.value.message.startswith("the source ")
    options = (
        ("keep the previous source",) if is_replaced else ("keep the previous query", "continue")
    )
    assert all(option in hint for option in (*options, "rename the stream", "restart"))
    return caught.value


def test_new_stream_starts_from_the_beginning_with_a_unique_id() -> None:
    result = reconcile(EMPTY, [declared(("w", "1")), declared(name="T")])
    assert result.warnings == []
    assert {o.state_handles == {} for o in result.manifest.operators.values()} == {True}
    one, two = (result.manifest.streams[name] for name in ("s", "t"))
    assert one.id != two.id
    assert not any(one.offsets.values())
    assert one.sources == {"bids": BIDS}


def test_unchanged_stream_continues() -> None:
    previous = after_epoch(reconcile(EMPTY, [declared(("w", "1"), ("j", "2"))]).manifest, bids=7)
    result = reconcile(previous, [declared(("w", "1"), ("j", "2"))])
    assert result.manifest == previous and result.warnings == []


def test_operators_are_identified_by_fingerprint_not_position() -> None:
    previous = after_epoch(reconcile(EMPTY, [declared(("w", "1"), ("j", "2"))]).manifest, bids=7)
    result = reconcile(previous, [declared(("j", "2"), ("w", "1"))])
    assert result.manifest.operators == previous.operators and result.warnings == []


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        ([("w", "1")], "since its last epoch: from j, w to w"),
        ([], "from j, w to none"),
        ([("w", "9"), ("j", "2")], "in or below w: the stored state belongs to the previous query"),
    ],
)
def test_rejects_changed_query(operators: list[tuple[str, str]], message: str) -> None:
    previous = after_epoch(reconcile(EMPTY, [declared(("w", "1"), ("j", "2"))]).manifest, bids=7)
    assert message in rejection(previous, declared(*operators)).message


def test_continue_keeps_matching_state_and_warns_about_the_rest() -> None:
    previous = after_epoch(reconcile(EMPTY, [declared(("w", "1"), ("j", "2"))]).manifest, bids=7)
    result = reconcile(
        previous, [declared(("w", "9"), ("j", "2"), ("t", "3"), on_change="continue")]
    )
    operators = result.manifest.operators
    assert result.manifest.streams == previous.streams
    assert operators.keys() == {"s.9", "s.2", "s.3"}
    assert operators["s.2"] == previous.operators["s.2"]
    # The watermark must not go back; the operator itself discards the rest of the state.
    assert operators["s.9"].state_handles == previous.operators["s.1"].state_handles
    assert operators["s.9"].files == previous.operators["s.1"].files
    assert operators["s.3"].state_handles == {}
    assert [warning.code for warning in result.warnings] == ["TG-606"] * 2
    assert "operator w of the stream S" in result.warnings[0].message


def test_restart_discards_state_and_changes_the_id() -> None:
    previous = after_epoch(reconcile(EMPTY, [declared(("w", "1"), ("j", "2"))]).manifest, bids=7)
    result = reconcile(previous, [declared(("w", "9"), ("j", "2"), on_change="restart")])
    stream = result.manifest.streams["s"]
    assert stream.id != previous.streams["s"].id and not any(stream.offsets.values())
    assert {o.state_handles == {} for o in result.manifest.operators.values()} == {True}


@pytest.mark.parametrize("on_change", ["restart", "continue"])
def test_on_change_does_not_affect_unchanged_stream(on_change: str) -> None:
    previous = after_epoch(reconcile(EMPTY, [declared(("w", "1"))]).manifest, bids=7)
    result = reconcile(previous, [declared(("w", "1"), on_change=on_change)])
    assert result.manifest == previous and result.warnings == []


def test_other_streams_do_not_change() -> None:
    both = [declared(("w", "1")), declared(("w", "1"), name="t")]
    previous = after_epoch(reconcile(EMPTY, both).manifest, bids=7)
    result = reconcile(previous, [declared(("w", "9"), on_change="restart"), both[1]])
    assert result.manifest.streams["t"] == previous.streams["t"]
    assert result.manifest.operators["t.1"] == previous.operators["t.1"]
    # A stream that is not declared now is kept.
    without = reconcile(previous, [both[1]])
    assert without.manifest == previous


def test_warns_about_stream_that_has_ended() -> None:
    manifest = reconcile(EMPTY, [declared(("w", "1")), declared(name="plain")]).manifest
    streams = {key: replace(stream, ended=True) for key, stream in manifest.streams.items()}
    result = reconcile(
        replace(manifest, streams=streams), [declared(("w", "1")), declared(name="plain")]
    )
    assert [warning.code for warning in result.warnings] == ["TG-607"]
    assert "DROP STREAM S" in (result.warnings[0].hint or "")


def test_rejects_replaced_source() -> None:
    previous = after_epoch(reconcile(EMPTY, [declared(("w", "1"))]).manifest, bids=7)
    replaced = {"bids": replace(BIDS, options={**BIDS.options, "path": "/elsewhere"})}
    for on_change in ("reject", "continue"):
        error = rejection(previous, declared(("w", "1"), sources=replaced, on_change=on_change))
        assert "path=/in/bids" in error.message and "path=/elsewhere" in error.message
        rejection(
            after_epoch(reconcile(EMPTY, [declared()]).manifest, bids=7), declared(sources=replaced)
        )


@pytest.mark.parametrize("operators", [(), (("w", "1"),)])
def test_restart_reads_replaced_source_from_the_beginning(
    operators: tuple[tuple[str, str], ...],
) -> None:
    previous = after_epoch(reconcile(EMPTY, [declared(*operators)]).manifest, bids=7)
    replaced = {"bids": replace(BIDS, options={**BIDS.options, "path": "/elsewhere"})}
    result = reconcile(previous, [declared(*operators, sources=replaced, on_change="restart")])
    stream = result.manifest.streams["s"]
    assert not any(stream.offsets.values()) and stream.id != previous.streams["s"].id
    assert stream.sources == replaced
    assert {o.state_handles == {} for o in result.manifest.operators.values()} <= {True}


def test_restart_of_one_stream_does_not_allow_replaced_source_for_another() -> None:
    both = [declared(), declared(name="t")]
    previous = after_epoch(reconcile(EMPTY, both).manifest, bids=7)
    replaced = {"bids": replace(BIDS, options={**BIDS.options, "path": "/elsewhere"})}
    first, second = (
        declared(sources=replaced, on_change="restart"),
        declared(name="t", sources=replaced),
    )
    assert "the stream t" in rejection(previous, first, second).message


def test_rejects_replaced_source_of_parked_stream() -> None:
    both = [declared(), declared(name="t")]
    previous = after_epoch(reconcile(EMPTY, both).manifest, bids=7)
    replaced = {"bids": replace(BIDS, options={**BIDS.options, "path": "/elsewhere"})}
    with_dependencies = reconcile(
        previous, [declared(sources=replaced, on_change="restart")]
    ).manifest
    assert (
        "the stream t"
        in rejection(
            after_epoch(with_dependencies, bids=3), declared(name="t", sources=replaced)
        ).message
    )


def test_other_sources_are_rejected_unless_continue() -> None:
    previous = after_epoch(reconcile(EMPTY, [declared(("w", "1"))]).manifest, bids=7)
    both = {"bids": BIDS, "asks": ASKS}
    error = rejection(previous, declared(("w", "1"), sources=both))
    assert "it read bids" in error.message and "asks (memory)" in error.message
    result = reconcile(previous, [declared(("w", "1"), sources=both, on_change="continue")])
    assert result.manifest.streams["s"].offsets["bids"] == 7
    assert result.manifest.streams["s"].sources == both
    fewer = reconcile(
        after_epoch(result.manifest, asks=2), [declared(("w", "1"), on_change="continue")]
    )
    assert fewer.manifest.streams["s"].offsets == {"bids": 7}
    # The change has been accepted and is not reported again.
    assert reconcile(after_epoch(fewer.manifest), [declared(("w", "1"))]).warnings == []


def test_source_without_rows_is_not_a_change() -> None:
    both = {"bids": BIDS, "asks": ASKS}
    previous = after_epoch(reconcile(EMPTY, [declared(("j", "1"), sources=both)]).manifest, bids=7)
    result = reconcile(previous, [declared(("j", "1"), sources=both)])
    assert result.manifest.streams["s"].offsets["bids"] == 7
    assert result.manifest.streams["s"].offsets.get("asks") is None


def late_reader(on_change: str = "reject") -> FixedStream:
    result = declared(("g", "5"), name="Late sums", on_change=on_change, sources={})
    return replace(result, late_inputs={"late": "s"})


def with_late_rows(manifest: Manifest, rows: int, *readers: FixedStream) -> Manifest:
    """Return the manifest after an epoch with a number of late rows of the first stream."""
    operators = {
        key: replace(o, report={"late_rows": rows if o.stream == "s" else 9})
        for key, o in manifest.operators.items()
    }
    streams = dict(manifest.streams)
    for reader in readers:
        offsets = late_offsets(reader, operators.values())
        streams[reader.key] = replace(streams[reader.key], offsets=offsets)
    return replace(manifest, operators=operators, streams=streams)


def test_late_reader_continues_without_warning() -> None:
    both = [declared(("w", "1")), late_reader()]
    previous = with_late_rows(reconcile(EMPTY, both).manifest, 3, both[1])
    assert previous.streams["late sums"].offsets == {"late": {"rows": 3}}
    result = reconcile(previous, both)
    assert result.manifest == previous and result.warnings == []


def test_warns_about_missed_late_rows() -> None:
    without_reader = with_late_rows(reconcile(EMPTY, [declared(("w", "1"))]).manifest, 3)
    (warning,) = reconcile(without_reader, [declared(("w", "1")), late_reader()]).warnings
    assert (warning.code, "has missed 3 rows of late" in warning.message) == ("TG-612", True)
    both = [declared(("w", "1")), late_reader()]
    parked = with_late_rows(reconcile(EMPTY, both).manifest, 3, both[1])
    (warning,) = reconcile(with_late_rows(parked, 5), both).warnings
    assert "has missed 2 rows of late" in warning.message


def test_rejects_late_reader_if_its_parent_restarts() -> None:
    both = [declared(("w", "1")), late_reader()]
    previous = with_late_rows(reconcile(EMPTY, both).manifest, 3, both[1])
    over = declared(("w", "9"), on_change="restart")
    error = rejection(previous, over, late_reader())
    assert "S starts over" not in error.message and "s starts over" in error.message
    result = reconcile(previous, [over, late_reader("restart")])
    assert result.warnings == []
    ids = {key: stream.id for key, stream in previous.streams.items()}
    assert all(stream.id != ids[key] for key, stream in result.manifest.streams.items())
    # The parent may also restart while the reader is not declared.
    meanwhile = reconcile(previous, [over]).manifest
    assert "emits its late rows again" in rejection(meanwhile, over, late_reader()).message


def test_with_dependencies_includes_parents_of_late_rows() -> None:
    others = [declared(name="T"), declared(("w", "1"))]
    second = replace(declared(name="U", sources={}), late_inputs={"later": "late sums"})
    streams = [*others, late_reader(), second]
    assert [reader.name for reader in with_dependencies(second, streams)] == ["S", "Late sums", "U"]
    assert with_dependencies(others[0], streams) == [others[0]]
