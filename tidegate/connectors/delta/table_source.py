"""The delta source: reads a snapshot of a table, then the files that later versions append.

An offset is a version and the number of its files that were read. The log lists the files that a
version adds. A version that removes files has changed or removed rows that may have been read, and
stops the source, unless on_rewrite = 'skip'.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from tidegate.columns import OP
from tidegate.connectors.base import (
    FrameBuilder,
    InputRange,
    Offset,
    ScanRequest,
    SourceContext,
    balance_splits,
)
from tidegate.connectors.delta.table import (
    LOG,
    DeltaColumn,
    DeltaLakeTable,
    matching_column,
    open_table,
    require_supported,
    translate_errors,
)
from tidegate.connectors.delta.table_tasks import DeltaReader
from tidegate.errors import RunError, TidegateError
from tidegate.physical.typed import arrow_type
from tidegate.storage import NotFound, open_store, uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The number of versions whose file lists are cached.
_MAX_CACHED_VERSIONS = 64
# A file of a version: its path, size, modification time, partition values and arrival position.
AddedFile = dict[str, Any]


class DeltaSource:
    """Reads a table."""

    def __init__(self, context: SourceContext) -> None:
        self.source = context.source
        self.options = context.source.options
        self.label = f"the source {self.source.name}"
        self.limit = self.options["files_per_epoch"] or context.settings["files_per_epoch"]
        self.sizer = context.sizer
        self.uri = uri(self.options["path"], self.source.script.folder)
        self.store = open_store(self.uri)
        self._files: dict[tuple[int, bool], list[AddedFile]] = {}
        with translate_errors(self.label):
            self.table = self._open_version()
            self.columns = self._match_columns(self.table)

    def _open_version(self, version: int | None = None) -> DeltaLakeTable:
        table = open_table(self.uri, version)
        if table is None:
            raise RunError(
                "TG-522",
                f"{self.label} reads the table {self.options['path']}, which does not exist",
                hint="create the table, or correct the option path.",
            )
        return table

    @property
    def _declared(self) -> list[tuple[str, str]]:
        columns = [(c.name, str(c.type)) for c in self.source.stored_columns]
        return [*columns, *([(OP, "STRING")] if self.source.carries_op else [])]

    def _match_columns(self, table: DeltaLakeTable) -> dict[str, DeltaColumn]:
        """Return the columns of the table by their declared names, in lower case."""
        require_supported(table, self.label)
        table_columns = table.columns()
        return {
            name.lower(): matching_column(
                table_columns, name, arrow_type(sql_type), sql_type, self.label
            )
            for name, sql_type in self._declared
        }

    # Planning.

    def plan_range(self, since: Offset | None, tasks: int) -> InputRange | None:
        with translate_errors(self.label):
            self.table.refresh()
            chosen: list[AddedFile] = []
            offset, more = since, False
            for position, file in self._files_after(since):
                if self._is_full(chosen, file):
                    more = True
                    break
                chosen.append(file)
                offset = position
        if not chosen:
            return None
        size = sum(file["size"] for file in chosen)
        splits = [
            (file["size"], [file["path"], file["position"], file["values"]]) for file in chosen
        ]
        return InputRange(offset, balance_splits(splits, tasks), has_more=more, size=size)

    def _is_full(self, chosen: list[AddedFile], file: AddedFile) -> bool:
        sizes = [item["size"] for item in (*chosen, file)]
        return len(chosen) >= self.limit or (
            bool(chosen) and self.sizer.fitting(sizes) < len(sizes)
        )

    def _files_after(self, since: Offset | None) -> Iterator[tuple[Offset, AddedFile]]:
        """Yield the files after an offset, each with the offset that follows it."""
        now, start = self.table.version, self.options["start"]
        # A bounded source ends at the version that was current when it started.
        until = (since or {}).get("until", now if self.options["bounded"] else None)
        end = {"until": until} if until is not None else {}
        if since is None and start.isdigit():
            last = int(start)
        else:
            offset = since or {"version": now, "snapshot": True, "files": 0, **end}
            yield from self._remaining_files(offset)
            last = offset["version"]
        for version in range(last + 1, (now if until is None else until) + 1):
            yield from self._remaining_files(
                {"version": version, "snapshot": False, "files": 0, **end}
            )

    def _remaining_files(self, offset: dict[str, Any]) -> Iterator[tuple[Offset, AddedFile]]:
        files = self._files_of(offset["version"], offset["snapshot"])
        for index in range(offset["files"], len(files)):
            yield {**offset, "files": index + 1}, files[index]

    def _files_of(self, version: int, snapshot: bool) -> list[AddedFile]:
        """Return the files that a version adds, or all its files, always in the same order."""
        key = (version, snapshot)
        if key not in self._files:
            added = self._snapshot_files(version) if snapshot else self._appended_files(version)
            files = sorted(added, key=lambda file: (file["modified"], file["path"]))
            for index, file in enumerate(files):
                file["position"] = f"{version:020d} {index:09d}"
            while len(self._files) >= _MAX_CACHED_VERSIONS:
                self._files.pop(next(iter(self._files)))
            self._files[key] = files
        return self._files[key]

    def _snapshot_files(self, version: int) -> list[AddedFile]:
        table = self._open_version(version)
        for batch in table.delta_table.deletion_vectors():
            if batch.num_rows:
                raise self._unreadable_error("it uses deletion vectors")
        actions = pa.table(table.delta_table.get_add_actions())
        partition_by = table.partition_by
        return [
            {
                "path": self._relative_path(unquote(action["path"])),
                "size": action["size_bytes"],
                "modified": _log_text(action["modification_time"]),
                "values": {
                    name: _log_text((action.get("partition") or {}).get(name))
                    for name in partition_by
                },
            }
            for action in actions.to_pylist()
        ]

    def _appended_files(self, version: int) -> list[AddedFile]:
        """Return the files that a version adds, from its log entry."""
        try:
            entry = self.store.get(f"{LOG}/{version:020d}.json")
        except NotFound:
            raise RunError(
                "TG-528",
                f"{self.label}: the log of {self.options['path']} no longer contains version "
                f"{version}, which has not been read",
                hint="start the stream over: run once with --on-change restart.",
            ) from None
        actions = [json.loads(line) for line in entry.splitlines() if line.strip()]
        if any(action.get("remove", {}).get("dataChange") for action in actions):
            if self.options["on_rewrite"] == "skip":
                return []
            raise self._rewritten_error(version)
        if any("metaData" in action for action in actions):
            self.columns = self._match_columns(self._open_version(version))
        added = [action["add"] for action in actions if "add" in action]
        return [self._file(add) for add in added if add["dataChange"]]

    def _file(self, add: dict[str, Any]) -> AddedFile:
        if add.get("deletionVector"):
            raise self._unreadable_error("it uses deletion vectors")
        return {
            "path": self._relative_path(unquote(add["path"])),
            "size": add["size"],
            "modified": str(add["modificationTime"]),
            "values": dict(add["partitionValues"]),
        }

    def _relative_path(self, path: str) -> str:
        if "://" in path or path.startswith("/"):
            raise self._unreadable_error(f"it has files outside of its directory, such as {path}")
        return path

    def _unreadable_error(self, why: str) -> TidegateError:
        return RunError(
            "TG-529",
            f"{self.label} cannot read {self.options['path']}: {why}",
            hint="read a rewritten copy of the table.",
        )

    def _rewritten_error(self, version: int) -> TidegateError:
        return RunError(
            "TG-528",
            f"{self.label}: version {version} of {self.options['path']} changes or removes rows, "
            "which may have been read before",
            hint="skip such versions: on_rewrite = 'skip'; or start the stream over with the "
            "current table: run once with --on-change restart.",
        )

    def on_commit(self, offset: Offset) -> None:
        """Do nothing: the table belongs to its writers."""

    # Reading.

    def create_reader(self, request: ScanRequest) -> DeltaReader:
        pairs = tuple((name, self.columns[name.lower()].name) for name, _ in request.columns)
        sql_types = dict(self._declared)
        schema = pa.schema([(name, arrow_type(sql_types[name])) for name, _ in request.columns])
        partition_by = tuple(self.table.partition_by)
        return DeltaReader(
            self.label,
            self.uri,
            schema,
            pairs,
            partition_by,
            request.with_arrival,
            request.with_location,
        )

    def frame(self, spark: SparkSession, request: ScanRequest, builder: FrameBuilder) -> DataFrame:
        return builder.read_frame(self.create_reader(request))

    def spark_read_frame(
        self, spark: SparkSession, request: ScanRequest, input_range: InputRange
    ) -> DataFrame:
        raise AssertionError("tasks read all rows")


def _log_text(value: Any) -> str | None:
    """Return a value in the notation of the log."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(" ")
    return str(value)


def open_source(context: SourceContext) -> DeltaSource:
    return DeltaSource(context)
