"""The files sink: tasks stage files, and `publish` renames them to their final names.

A final name consists of stream, sink, generation, epoch and task, so publishing can be repeated. A
commit marker next to the data contains the last published epoch. Published files are only deleted
after they have been merged into a larger file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tidegate.catalog.connector import ColumnTypes, OptionValues
from tidegate.connectors.base import (
    Committable,
    CommittedState,
    EpochId,
    RowEncoder,
    SinkContext,
    SqlColumns,
    sink_ahead_error,
    sweep_staged,
)
from tidegate.connectors.files.compaction import Compaction, CompactionLimits
from tidegate.connectors.files.listing import MergedFiles, parse_file_name
from tidegate.connectors.files.writer import FileFormat, FilesWriterFactory
from tidegate.errors import Location, RunError, TidegateError
from tidegate.storage import StorageError, open_store, uri

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.storage import StoredFile


# ---- The commit marker: the last published epoch, and the layout of the files.

_TEXT_OPTIONS = ("header", "delimiter")


class DamagedMarker(Exception):
    """A commit marker cannot be parsed. The message is the reason."""


@dataclass(frozen=True)
class FileLayout:
    """The columns, partition folders and format of a sink's files."""

    format: str
    partition_by: tuple[str, ...]
    columns: ColumnTypes
    # Only for CSV.
    header: bool | None = None
    delimiter: str | None = None

    @classmethod
    def from_options(cls, options: OptionValues, columns: ColumnTypes) -> FileLayout:
        text = _TEXT_OPTIONS if options["format"] == "csv" else ()
        folders = tuple(name.lower() for name in options["partition_by"] or ())
        return cls(options["format"], folders, columns, **{name: options[name] for name in text})

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> FileLayout:
        columns = tuple((str(name), str(sql_type)) for name, sql_type in content["columns"])
        folders = tuple(map(str, content["partition_by"]))
        return cls(**{**content, "columns": columns, "partition_by": folders})

    def changes(self, before: FileLayout) -> list[str]:
        """Describe how this layout differs from an earlier one."""
        changes = [
            f"the option {name} changed from {_format(old)} to {_format(new)}"
            for name in ("format", "partition_by", *_TEXT_OPTIONS)
            if (old := getattr(before, name)) != (new := getattr(self, name))
        ]
        was, now = dict(before.columns), dict(self.columns)
        changes += [f"the column {name} {was[name]} was removed" for name in was if name not in now]
        changes += [f"the column {name} {now[name]} was added" for name in now if name not in was]
        changes += [
            f"the column {name} changed from {was[name]} to {now[name]}"
            for name in was
            if name in now and was[name].lower() != now[name].lower()
        ]
        if not changes and self.format == "csv" and list(was) != list(now):
            changes = [f"the order of columns changed from {', '.join(was)} to {', '.join(now)}"]
        return changes


@dataclass(frozen=True)
class FilesMarker:
    """The commit marker of a sink. Early versions did not write the layout."""

    epoch: EpochId
    layout: FileLayout | None = None

    def to_bytes(self) -> bytes:
        content: dict[str, Any] = asdict(self.epoch)
        if self.layout is not None:
            content["shape"] = asdict(self.layout)
        return json.dumps(content).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> FilesMarker:
        try:
            stored = json.loads(data)
            epoch = EpochId(int(stored.get("generation", 0)), int(stored["epoch"]))
            layout = FileLayout.from_json(stored["shape"]) if "shape" in stored else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedMarker(str(error)) from None
        return cls(epoch, layout)


def _format(value: Any) -> str:
    return (", ".join(value) or "nothing") if isinstance(value, tuple) else str(value)


# ---- The sink.

# The folder for internal files of all sinks that write to the directory.
_INTERNAL = "_tidegate"
_MARKER = "committed.json"
_MICROSECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_LIMITS = ("compact_after", "max_file_rows", "max_file_bytes")
# Spark's default formats have only milliseconds.
_TIMES = {"timestampFormat": _MICROSECONDS + "XXX", "timestampNTZFormat": _MICROSECONDS}
# The column with the record as text, for text formats.
LINE = "_tg_line_out"


class FilesSink:
    """A directory to which epochs are added."""

    def __init__(self, context: SinkContext) -> None:
        self.context = context
        self.options = context.sink.options
        self.store = open_store(uri(self.options["path"], context.sink.script.folder))
        # Files are named <stream id>-<sink>-..., so this is common to all sinks with this name.
        self.name_suffix = f"-{context.sink.name.lower()}-"
        self.prefix = f"{context.stream_id}{self.name_suffix}"
        self.internal = f"{_INTERNAL}/{self.prefix}"
        self.last: EpochId | None = None
        self.layout = FileLayout.from_options(self.options, context.columns)
        self.format = FileFormat(self.options["format"])
        limits = CompactionLimits(*(self.options[name] for name in _LIMITS))
        self.compaction = Compaction(self.store, self.internal, self.prefix, limits)

    def recover(self, committed: CommittedState) -> None:
        try:
            self._require_writable()
            files = self.store.list()
            markers = self._markers(files)
            marker = markers.get(self.prefix)
            self.last = marker.epoch if marker is not None else None
            epochs = _epochs_by_prefix(files)
            self._reject_unknown_epochs(committed, epochs.get(self.prefix, set()))
            if marker is None:
                self._reject_second_pipeline(committed, markers)
            has_rows = {*epochs, *([self.prefix] if self._must_publish(committed) else [])}
            self._reject_other_layout([m for owner, m in markers.items() if owner in has_rows])
            if marker is None or marker.layout != self.layout:
                self._write_marker(self.last or EpochId(0, -1))
            self.compaction.recover()
            if self._must_publish(committed):
                epoch = committed.committables_epoch
                assert epoch is not None, "committables belong to an epoch"
                self._rename_staged(epoch, self._without_merged(epoch, committed.committables))
            sweep_staged(self.store, f"{self.internal}/staging", committed)
        except StorageError as error:
            if error.retryable:
                raise
            raise self._cannot_write(error.message) from None

    def _must_publish(self, committed: CommittedState) -> bool:
        """Return whether committed rows have not been published."""
        epoch = committed.committables_epoch
        is_behind = epoch is not None and (self.last is None or self.last < epoch)
        return is_behind and bool(committed.committables)

    def _without_merged(
        self, epoch: EpochId, committables: Sequence[Committable]
    ) -> list[Committable]:
        """Remove committables whose rows are in a merged file: they have been published."""
        merged = MergedFiles(item.name for item in self.store.list())
        return [
            committable
            for committable in committables
            if not merged.replaces(self._final_name(epoch, committable))
        ]

    def _require_writable(self) -> None:
        name = f"{self.internal}/writable"
        self.store.put(name, b"")
        self.store.delete([name])

    def _markers(self, files: Sequence[StoredFile]) -> dict[str, FilesMarker]:
        """Read the markers of all sinks of this name, by the prefix of their files."""
        markers = {}
        for item in files:
            owner = item.name.removeprefix(f"{_INTERNAL}/").rpartition("/")[0]
            # The name of a sink may contain a dash, the stream id before it does not.
            is_same_name = (
                owner.endswith(self.name_suffix) and "-" not in owner[: -len(self.name_suffix)]
            )
            if is_same_name and item.name == f"{_INTERNAL}/{owner}/{_MARKER}":
                try:
                    markers[owner] = FilesMarker.from_bytes(self.store.get(item.name))
                except DamagedMarker as error:
                    raise self._cannot_write(
                        f"its commit marker {item.name} is damaged ({error})",
                        "restore the marker from a copy, or choose another path.",
                        "TG-526",
                    ) from None
        return markers

    def _cannot_write(
        self, reason: str, hint: str | None = None, code: str = "TG-529"
    ) -> TidegateError:
        return RunError(
            code,
            f"the sink {self.context.sink.name} cannot write to {self.options['path']}: {reason}",
            hint=hint or "create the directory, or correct the option path.",
        )

    def _reject_unknown_epochs(self, committed: CommittedState, stored: set[EpochId]) -> None:
        """Reject files or a marker of epochs that the manifest does not know."""
        if self.last is None and stored:
            raise self._ahead_error(
                f"contains epochs up to {max(stored).epoch}",
                f"but its commit marker {self._marker_uri} is missing",
                None,
            )
        if self.last is not None and self.last.epoch >= 0 and not committed.contains(self.last):
            raise self._ahead_error(
                f"contains epoch {self.last.epoch} of generation {self.last.generation}",
                f"which this pipeline has not committed (commit marker: {self._marker_uri})",
                committed.last,
            )
        unknown = [epoch for epoch in stored if not committed.contains(epoch)]
        if unknown:
            last = self.last.epoch if self.last is not None else -1
            raise self._ahead_error(
                f"contains epochs up to {max(unknown).epoch}",
                "which this pipeline has not committed (its commit marker "
                f"{self._marker_uri} contains epoch {last})",
                committed.last,
            )

    @property
    def _marker_uri(self) -> str:
        return f"{self.store.uri}/{self.internal}/{_MARKER}"

    def _ahead_error(self, contents: str, problem: str, last: EpochId | None) -> TidegateError:
        return sink_ahead_error(
            f"{self.options['path']} {contents} of the sink {self.context.sink.name}, {problem}",
            "restore the data directory and the marker that belong to these files, or write "
            "to another path",
            last,
        )

    def _reject_second_pipeline(
        self, committed: CommittedState, markers: Mapping[str, FilesMarker]
    ) -> None:
        """Reject a new pipeline that would write the rows of an earlier one again."""
        if self.options["existing"] == "append":
            return
        epochs = [marker.epoch for marker in markers.values()]
        if any(
            at.epoch >= 0 and at.generation >= committed.keep_before_generation for at in epochs
        ):
            raise RunError(
                "TG-525",
                f"{self.options['path']} contains rows that an earlier pipeline wrote for the sink "
                f"{self.context.sink.name}; this pipeline starts from the beginning and would "
                "write them again",
                hint="remove the directory, choose another path, or set existing = 'append'.",
            )

    def _reject_other_layout(self, markers: Sequence[FilesMarker]) -> None:
        """Reject files with other columns: the directory could not be read as one table."""
        for marker in markers:
            changes = self.layout.changes(marker.layout) if marker.layout is not None else []
            if changes:
                sink = self.context.sink
                span = sink.statement.name_span
                raise RunError(
                    "TG-523",
                    f"the files that the sink {sink.name} has written to {self.options['path']} "
                    f"have a different layout than new files: {'; '.join(changes)}",
                    location=Location(sink.script.text, span.start, span.end, sink.script.file),
                    hint="choose another path, move the existing files to another directory, or "
                    "keep the previous columns and options.",
                )

    def columns(self, stream_columns: SqlColumns) -> SqlColumns | None:
        """Return the record as text for text formats, and partition columns as folder names."""
        from tidegate.sql.quoting import quote_identifier

        format = self.options["format"]
        data_columns = [
            (sql, name) for sql, name in stream_columns if name.lower() not in self._partition
        ]
        # Spark converts the values to folder names.
        folders = [
            (f"CAST({sql} AS STRING)", name)
            for sql, name in stream_columns
            if name.lower() in self._partition
        ]
        if format == "parquet":
            return [*data_columns, *folders] if folders else None
        record = ", ".join(f"{sql} AS {quote_identifier(name)}" for sql, name in data_columns)
        line = f"to_{format}(struct({record}), {_sql_map(self._text_options())})"
        return [(line, LINE), *folders]

    def row_encoder(self, schema: pa.Schema) -> RowEncoder | None:
        if self.options["format"] != "json" or self._partition:
            return None
        from tidegate.connectors.formats.row_encoder import json_encoder

        return json_encoder(schema, LINE)

    def _text_options(self) -> dict[str, str]:
        options = dict(_TIMES)
        if self.options["format"] == "csv":
            options |= {"sep": self.options["delimiter"], "escape": '"'}
            options |= {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
        return options

    @property
    def _partition(self) -> set[str]:
        return {name.lower() for name in self.options["partition_by"] or ()}

    def writer_factory(self, schema: pa.Schema) -> FilesWriterFactory:
        header = None
        if self.options["format"] == "csv" and self.options["header"]:
            header = self._header([n for n in schema.names if n.lower() not in self._partition])
        self.format = FileFormat(self.options["format"], header)
        return FilesWriterFactory(
            self.store.child(f"{self.internal}/staging").uri,
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
            self._rename_staged(epoch, committables)
            for committable in committables:
                self.compaction.add(
                    self._final_name(epoch, committable), committable["bytes"], committable["rows"]
                )
        self.compaction.run(self.format)

    def _rename_staged(self, epoch: EpochId, committables: Sequence[Committable]) -> None:
        folders = set()
        for committable in committables:
            final_name = self._final_name(epoch, committable)
            self.store.move_new(f"{self.internal}/staging/{committable['staged']}", final_name)
            folders.add("/".join(committable["folder"]))
        self.store.sync(folders)
        self._write_marker(epoch)

    def _final_name(self, epoch: EpochId, committable: Committable) -> str:
        return "/".join(
            [*committable["folder"], f"{self.prefix}{epoch.stamp}-{committable['name']}"]
        )

    def _write_marker(self, epoch: EpochId) -> None:
        self.store.put(f"{self.internal}/{_MARKER}", FilesMarker(epoch, self.layout).to_bytes())
        self.last = epoch


def _epochs_by_prefix(files: Sequence[StoredFile]) -> dict[str, set[EpochId]]:
    """Return the epochs in the names of files, by the prefix of the names."""
    epochs_by_prefix: dict[str, set[EpochId]] = {}
    for item in files:
        name = parse_file_name(item.name)
        if name is not None and not item.name.startswith(f"{_INTERNAL}/"):
            epochs = {EpochId(name.generation, at) for at in (name.first, name.last)}
            epochs_by_prefix.setdefault(name.prefix, set()).update(epochs)
    return epochs_by_prefix


def json_options(nulls: bool = False) -> str:
    """Return the options argument of to_json; `nulls` includes fields that are NULL."""
    return _sql_map({**_TIMES, **({"ignoreNullFields": "false"} if nulls else {})})


def _sql_map(options: dict[str, str]) -> str:
    from tidegate.sql.dialect import string_literal

    return f"map({', '.join(string_literal(part) for pair in options.items() for part in pair)})"


def _csv_text(name: str, delimiter: str) -> str:
    plain = not any(sign in name for sign in (delimiter, '"', "\n"))
    return name if plain else '"' + name.replace('"', '""') + '"'
