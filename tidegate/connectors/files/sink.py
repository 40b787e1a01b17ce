"""Directories of files as a sink: tasks write aside, a commit gives files their final names.

A final name is made of pipeline, sink, generation, epoch and task, so a commit can be repeated. A
marker beside the data says which epoch was the last. Nothing that was committed is ever deleted,
unless a merged file holds the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tidegate.catalog.connector import Columns, Values
from tidegate.connectors.base import (
    Committable,
    CommittedState,
    EpochId,
    SinkContext,
    SqlColumns,
    sink_ahead_error,
    sweep_staged,
)
from tidegate.connectors.files.compaction import Compaction, Limits
from tidegate.connectors.files.listing import MergedFiles, held
from tidegate.connectors.files.writer import Content, FilesWriterFactory
from tidegate.errors import Location, RunError, TidegateError
from tidegate.storage import StorageError, open_store, uri

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.storage import StoredFile


# ---- The marker of a files sink: the last epoch that it has, and what its files look like.

_TEXT_OPTIONS = ("header", "delimiter")


class Damaged(Exception):
    """A marker that cannot be believed, and why."""


@dataclass(frozen=True)
class Shape:
    """What the files of a sink look like: columns with types, folders, and how they are written."""

    format: str
    partition_by: tuple[str, ...]
    columns: Columns
    # How CSV is written.
    header: bool | None = None
    delimiter: str | None = None

    @classmethod
    def of(cls, options: Values, columns: Columns) -> Shape:
        text = _TEXT_OPTIONS if options["format"] == "csv" else ()
        folders = tuple(name.lower() for name in options["partition_by"] or ())
        return cls(options["format"], folders, columns, **{name: options[name] for name in text})

    @classmethod
    def stored(cls, content: dict[str, Any]) -> Shape:
        columns = tuple((str(name), str(kind)) for name, kind in content["columns"])
        folders = tuple(map(str, content["partition_by"]))
        return cls(**{**content, "columns": columns, "partition_by": folders})

    def changes(self, before: Shape) -> list[str]:
        """How these files are others than those of before, in words."""
        found = [
            f"{name} was {_shown(old)} and is {_shown(new)} now"
            for name in ("format", "partition_by", *_TEXT_OPTIONS)
            if (old := getattr(before, name)) != (new := getattr(self, name))
        ]
        was, now = dict(before.columns), dict(self.columns)
        found += [f"the column {name} {was[name]} is gone" for name in was if name not in now]
        found += [f"the column {name} {now[name]} is new" for name in now if name not in was]
        found += [
            f"the column {name} was {was[name]} and is {now[name]} now"
            for name in was
            if name in now and was[name].lower() != now[name].lower()
        ]
        if not found and self.format == "csv" and list(was) != list(now):
            found = [f"the columns were {', '.join(was)} and are {', '.join(now)} now"]
        return found


@dataclass(frozen=True)
class Marker:
    """What a sink has; one without a shape was written before there were any."""

    epoch: EpochId
    shape: Shape | None = None

    def to_bytes(self) -> bytes:
        content: dict[str, Any] = asdict(self.epoch)
        if self.shape is not None:
            content["shape"] = asdict(self.shape)
        return json.dumps(content).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Marker:
        try:
            stored = json.loads(data)
            epoch = EpochId(int(stored.get("generation", 0)), int(stored["epoch"]))
            shape = Shape.stored(stored["shape"]) if "shape" in stored else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(str(error)) from None
        return cls(epoch, shape)


def _shown(value: Any) -> str:
    return (", ".join(value) or "nothing") if isinstance(value, tuple) else str(value)


_OURS = "_tidegate"
_MARKER = "committed.json"
_MICROSECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_LIMITS = ("compact_after", "max_file_rows", "max_file_bytes")
# Spark's own formats end at the milliseconds.
_TIMES = {"timestampFormat": _MICROSECONDS + "XXX", "timestampNTZFormat": _MICROSECONDS}
# The column that holds a record as text, where the format is one of text.
LINE = "_tg_line_out"


class FilesSink:
    """A directory that epochs are added to."""

    def __init__(self, context: SinkContext) -> None:
        self.context = context
        self.options = context.sink.options
        self.store = open_store(uri(self.options["path"], context.sink.origin.folder))
        # All sinks of this name, whatever pipeline they belong to, have names that end so.
        self.others = f"-{context.sink.name.lower()}-"
        self.prefix = f"{context.pipeline}{self.others}"
        self.aside = f"{_OURS}/{self.prefix}"
        self.last: EpochId | None = None
        self.shape = Shape.of(self.options, context.columns)
        self.content = Content(self.options["format"])
        limits = Limits(*(self.options[name] for name in _LIMITS))
        self.compaction = Compaction(self.store, self.aside, self.prefix, limits)

    # Opening

    def recover(self, committed: CommittedState) -> None:
        try:
            self._require_writable()
            there = self.store.list()
            markers = self._markers(there)
            own = markers.get(self.prefix)
            self.last = own.epoch if own is not None else None
            epochs = _epochs_by_owner(there)
            self._reject_strangers(committed, epochs.get(self.prefix, set()))
            if own is None:
                self._reject_doubles(committed, markers)
            has_rows = {*epochs, *([self.prefix] if self._is_waited_for(committed) else [])}
            self._reject_other_columns([m for owner, m in markers.items() if owner in has_rows])
            if own is None or own.shape != self.shape:
                self._mark(self.last or EpochId(0, -1))
            self.compaction.recover()
            if self._is_waited_for(committed):
                epoch = committed.committables_epoch
                assert epoch is not None, "what was staged was staged for an epoch"
                self._show(epoch, self._not_merged(epoch, committed.committables))
            sweep_staged(self.store, f"{self.aside}/staging", committed)
        except StorageError as error:
            if error.retryable:
                raise
            raise self._cannot(error.message) from None

    def _is_waited_for(self, committed: CommittedState) -> bool:
        """Whether rows were decided that this sink does not show yet."""
        epoch = committed.committables_epoch
        is_behind = epoch is not None and (self.last is None or self.last < epoch)
        return is_behind and bool(committed.committables)

    def _not_merged(self, epoch: EpochId, committables: Sequence[Committable]) -> list[Committable]:
        """What a merged file holds was committed, whatever the marker says."""
        merged = MergedFiles(item.name for item in self.store.list())
        return [
            committable
            for committable in committables
            if not merged.hold(self._goal(epoch, committable))
        ]

    def _require_writable(self) -> None:
        name = f"{self.aside}/writable"
        self.store.put(name, b"")
        self.store.delete([name])

    def _markers(self, there: Sequence[StoredFile]) -> dict[str, Marker]:
        """The markers of all sinks of this name that ever wrote here, by how their files begin."""
        found = {}
        for item in there:
            owner = item.name.removeprefix(f"{_OURS}/").rpartition("/")[0]
            # A name may hold a dash, what stands before it does not.
            ours = owner.endswith(self.others) and "-" not in owner[: -len(self.others)]
            if ours and item.name == f"{_OURS}/{owner}/{_MARKER}":
                try:
                    found[owner] = Marker.from_bytes(self.store.get(item.name))
                except Damaged as error:
                    raise self._cannot(
                        f"its marker {item.name} is damaged ({error})",
                        "put the marker back from a copy, or choose another path.",
                    ) from None
        return found

    def _cannot(self, why: str, hint: str | None = None) -> TidegateError:
        return RunError(
            "TG-504",
            f"the sink {self.context.sink.name} cannot write to {self.options['path']}: {why}",
            hint=hint or "create the directory, or correct the option path.",
        )

    def _reject_strangers(self, committed: CommittedState, there: set[EpochId]) -> None:
        """Files or a marker that the manifest knows nothing of: never skipped, never deleted."""
        if self.last is None and there:
            raise self._strange(f"holds epochs up to {max(there).epoch}", "is gone", None)
        if self.last is not None and self.last.epoch >= 0 and not committed.knows(self.last):
            raise self._strange(
                f"has epoch {self.last.epoch} of generation {self.last.generation}",
                "is ahead of the pipeline, or of another generation",
                committed.last,
            )
        strange = [epoch for epoch in there if not committed.knows(epoch)]
        if strange:
            says = self.last.epoch if self.last is not None else -1
            has = f"holds epochs up to {max(strange).epoch}"
            raise self._strange(has, f"says {says}", committed.last)

    def _strange(self, has: str, marker: str, last: EpochId | None) -> TidegateError:
        return sink_ahead_error(
            f"{self.options['path']} {has} of the sink {self.context.sink.name}, but its marker "
            f"{self.store.uri}/{self.aside}/{_MARKER} {marker}",
            "put back the data directory and the marker that belong to these files, or write "
            "to another path",
            last,
        )

    def _reject_doubles(self, committed: CommittedState, markers: Mapping[str, Marker]) -> None:
        """A pipeline that starts anew would write rows again that an earlier one has written."""
        if self.options["existing"] == "append":
            return
        epochs = [marker.epoch for marker in markers.values()]
        if any(at.epoch >= 0 and at.generation >= committed.kept_before for at in epochs):
            raise RunError(
                "TG-504",
                f"{self.options['path']} holds rows that an earlier pipeline wrote for the sink "
                f"{self.context.sink.name}; this one starts anew and would write them again",
                hint="remove the directory, choose another path, or say existing = 'append'.",
            )

    def _reject_other_columns(self, markers: Sequence[Marker]) -> None:
        """Files of other columns or types would make the directory unreadable as one table."""
        for marker in markers:
            changes = self.shape.changes(marker.shape) if marker.shape is not None else []
            if changes:
                sink = self.context.sink
                span = sink.statement.name_span
                raise RunError(
                    "TG-504",
                    f"the files that the sink {sink.name} has written to {self.options['path']} "
                    f"look different from those it would add: {'; '.join(changes)}",
                    place=Location(sink.origin.text, span.start, span.end, sink.origin.file),
                    hint="choose another path, or move the files that are there to another "
                    "directory; or keep the columns and options of before.",
                )

    # Epochs

    def columns(self, given: SqlColumns) -> SqlColumns | None:
        """What the sink wants instead of the columns: a record as text, and its partition."""
        from tidegate.sql.quoting import quoted

        kind = self.options["format"]
        rest = [(sql, name) for sql, name in given if name.lower() not in self._partition]
        # The names of folders are the texts that Spark makes of values.
        folders = [
            (f"CAST({sql} AS STRING)", name)
            for sql, name in given
            if name.lower() in self._partition
        ]
        if kind == "parquet":
            return [*rest, *folders] if folders else None
        record = ", ".join(f"{sql} AS {quoted(name)}" for sql, name in rest)
        line = f"to_{kind}(struct({record}), {_sql_map(self._text_options())})"
        return [(line, LINE), *folders]

    def _text_options(self) -> dict[str, str]:
        given = dict(_TIMES)
        if self.options["format"] == "csv":
            given |= {"sep": self.options["delimiter"], "escape": '"'}
            given |= {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
        return given

    @property
    def _partition(self) -> set[str]:
        return {name.lower() for name in self.options["partition_by"] or ()}

    def writer_factory(self, schema: pa.Schema) -> FilesWriterFactory:
        header = None
        if self.options["format"] == "csv" and self.options["header"]:
            header = self._header([n for n in schema.names if n.lower() not in self._partition])
        self.content = Content(self.options["format"], header)
        return FilesWriterFactory(
            self.store.child(f"{self.aside}/staging").uri,
            self.options["format"],
            tuple(self.options["partition_by"] or ()),
            header,
            self.options["max_file_rows"],
            self.options["max_file_bytes"],
        )

    def _header(self, names: Sequence[str]) -> str:
        delimiter = str(self.options["delimiter"]).replace("\\t", "\t")
        return delimiter.join(_csv_text(name, delimiter) for name in names)

    def publish(self, epoch: EpochId, committables: Sequence[Committable]) -> None:
        if committables and self.last != epoch:
            self._show(epoch, committables)
            for committable in committables:
                self.compaction.add(
                    self._goal(epoch, committable), committable["bytes"], committable["rows"]
                )
        self.compaction.run(self.content)

    def _show(self, epoch: EpochId, committables: Sequence[Committable]) -> None:
        folders = set()
        for committable in committables:
            goal = self._goal(epoch, committable)
            self.store.move_new(f"{self.aside}/staging/{committable['staged']}", goal)
            folders.add("/".join(committable["folder"]))
        self.store.sync(folders)
        self._mark(epoch)

    def _goal(self, epoch: EpochId, committable: Committable) -> str:
        return "/".join(
            [*committable["folder"], f"{self.prefix}{epoch.stamp}-{committable['name']}"]
        )

    def _mark(self, epoch: EpochId) -> None:
        self.store.put(f"{self.aside}/{_MARKER}", Marker(epoch, self.shape).to_bytes())
        self.last = epoch


def _epochs_by_owner(there: Sequence[StoredFile]) -> dict[str, set[EpochId]]:
    """The epochs that files are named after, by how their names begin."""
    found: dict[str, set[EpochId]] = {}
    for item in there:
        holds = held(item.name)
        if holds is not None and not item.name.startswith(f"{_OURS}/"):
            epochs = {EpochId(holds.generation, at) for at in (holds.first, holds.last)}
            found.setdefault(holds.owner, set()).update(epochs)
    return found


def json_options(nulls: bool = False) -> str:
    """How rows become JSON, as an argument of to_json; `nulls`: with fields that are NULL."""
    return _sql_map({**_TIMES, **({"ignoreNullFields": "false"} if nulls else {})})


def _sql_map(given: dict[str, str]) -> str:
    from tidegate.sql.dialect import text_literal

    return f"map({', '.join(text_literal(part) for pair in given.items() for part in pair)})"


def _csv_text(name: str, delimiter: str) -> str:
    plain = not any(sign in name for sign in (delimiter, '"', "\n"))
    return name if plain else '"' + name.replace('"', '""') + '"'
