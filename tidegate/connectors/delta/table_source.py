"""Tables of Delta Lake as a source: the table as it is, then the files that versions append.

An offset is a version and how many of its files were read. The log says which files a version adds;
one that takes files away has changed or removed rows that were handed out, and stops the source.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from tidegate.columns import OP
from tidegate.connectors.base import FrameBuilder, InputRange, Offset, Read, SourceContext, Split
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

# Versions whose files are kept in mind.
_REMEMBERED = 64
File = dict[str, Any]


class DeltaSource:
    """A table that is read."""

    def __init__(self, context: SourceContext) -> None:
        self.source = context.source
        self.options = context.source.options
        self.who = f"the source {self.source.name}"
        self.limit = self.options["files_per_epoch"] or context.settings["files_per_epoch"]
        self.sizer = context.sizer
        self.uri = uri(self.options["path"], self.source.origin.folder)
        self.store = open_store(self.uri)
        self._files: dict[tuple[int, bool], list[File]] = {}
        with translate_errors(self.who):
            self.table = self._opened()
            self.columns = self._fitting(self.table)

    def _opened(self, version: int | None = None) -> DeltaLakeTable:
        table = open_table(self.uri, version)
        if table is None:
            raise RunError(
                "TG-522",
                f"{self.who} reads the table {self.options['path']}, which does not exist",
                hint="create the table, or correct the option path.",
            )
        return table

    @property
    def _declared(self) -> list[tuple[str, str]]:
        kinds = [(c.name, str(c.type)) for c in self.source.stored_columns]
        return [*kinds, *([(OP, "STRING")] if self.source.carries_op else [])]

    def _fitting(self, table: DeltaLakeTable) -> dict[str, DeltaColumn]:
        """The columns of the table by the names that were declared."""
        require_supported(table, self.who)
        there = table.columns()
        return {
            name.lower(): matching_column(there, name, arrow_type(kind), kind, self.who)
            for name, kind in self._declared
        }

    # Cutting

    def plan_range(self, since: Offset | None, tasks: int) -> InputRange | None:
        with translate_errors(self.who):
            self.table.look_again()
            chosen: list[File] = []
            offset, more = since, False
            for place, file in self._following(since):
                if self._is_full(chosen, file):
                    more = True
                    break
                chosen.append(file)
                offset = place
        if not chosen:
            return None
        size = sum(file["size"] for file in chosen)
        return InputRange(offset, _spread(chosen, tasks), more=more, size=size)

    def _is_full(self, chosen: list[File], file: File) -> bool:
        sizes = [item["size"] for item in (*chosen, file)]
        return len(chosen) >= self.limit or (bool(chosen) and self.sizer.fitting(sizes) < len(sizes))

    def _following(self, since: Offset | None) -> Iterator[tuple[Offset, File]]:
        """The files after an offset, each with the offset behind it."""
        now, start = self.table.version, self.options["start"]
        # A bounded source ends where the table was when it began.
        until = (since or {}).get("until", now if self.options["bounded"] else None)
        end = {"until": until} if until is not None else {}
        if since is None and start.isdigit():
            last = int(start)
        else:
            at = since or {"version": now, "snapshot": True, "files": 0, **end}
            yield from self._rest(at)
            last = at["version"]
        for version in range(last + 1, (now if until is None else until) + 1):
            yield from self._rest({"version": version, "snapshot": False, "files": 0, **end})

    def _rest(self, at: dict[str, Any]) -> Iterator[tuple[Offset, File]]:
        files = self._of(at["version"], at["snapshot"])
        for place in range(at["files"], len(files)):
            yield {**at, "files": place + 1}, files[place]

    def _of(self, version: int, snapshot: bool) -> list[File]:
        """The files of a version, or of the whole table as of it, always in the same order."""
        key = (version, snapshot)
        if key not in self._files:
            found = self._standing(version) if snapshot else self._appended(version)
            files = sorted(found, key=lambda file: (file["modified"], file["path"]))
            for place, file in enumerate(files):
                file["place"] = f"{version:020d} {place:09d}"
            while len(self._files) >= _REMEMBERED:
                self._files.pop(next(iter(self._files)))
            self._files[key] = files
        return self._files[key]

    def _standing(self, version: int) -> list[File]:
        table = self._opened(version)
        for batch in table.loaded.deletion_vectors():
            if batch.num_rows:
                raise self._unreadable("rows of it are deleted by deletion vectors")
        told_of = pa.table(table.loaded.get_add_actions())
        by = table.partition_by
        return [
            {
                "path": self._named(unquote(action["path"])),
                "size": action["size_bytes"],
                "modified": _text(action["modification_time"]),
                "values": {name: _text((action.get("partition") or {}).get(name)) for name in by},
            }
            for action in told_of.to_pylist()
        ]

    def _appended(self, version: int) -> list[File]:
        """What a version adds to the table."""
        try:
            entry = self.store.get(f"{LOG}/{version:020d}.json")
        except NotFound:
            raise RunError(
                "TG-528",
                f"{self.who}: the log of {self.options['path']} no longer has version {version}, "
                "which was not read yet",
                hint="start the stream over: run once with --on-change restart.",
            ) from None
        actions = [json.loads(line) for line in entry.splitlines() if line.strip()]
        if any(action.get("remove", {}).get("dataChange") for action in actions):
            if self.options["on_rewrite"] == "skip":
                return []
            raise self._rewritten(version)
        if any("metaData" in action for action in actions):
            self.columns = self._fitting(self._opened(version))
        added = [action["add"] for action in actions if "add" in action]
        return [self._file(add) for add in added if add["dataChange"]]

    def _file(self, add: dict[str, Any]) -> File:
        if add.get("deletionVector"):
            raise self._unreadable("rows of it are deleted by deletion vectors")
        return {
            "path": self._named(unquote(add["path"])),
            "size": add["size"],
            "modified": str(add["modificationTime"]),
            "values": dict(add["partitionValues"]),
        }

    def _named(self, path: str) -> str:
        if "://" in path or path.startswith("/"):
            raise self._unreadable(f"it has files elsewhere, such as {path}")
        return path

    def _unreadable(self, why: str) -> TidegateError:
        return RunError(
            "TG-529",
            f"{self.who} cannot read {self.options['path']}: {why}",
            hint="read a copy of the table that was written anew.",
        )

    def _rewritten(self, version: int) -> TidegateError:
        return RunError(
            "TG-528",
            f"{self.who}: version {version} of {self.options['path']} changes or removes rows, "
            "which may have been read before",
            hint="leave out such versions: on_rewrite = 'skip'; or start the stream over with the "
            "table as it is now: run once with --on-change restart.",
        )

    def on_commit(self, offset: Offset) -> None:
        pass

    # Reading

    def direct(self, read: Read) -> DeltaReader:
        pairs = tuple((name, self.columns[name.lower()].name) for name, _ in read.columns)
        kinds = dict(self._declared)
        schema = pa.schema([(name, arrow_type(kinds[name])) for name, _ in read.columns])
        by = tuple(self.table.partition_by)
        return DeltaReader(self.who, self.uri, schema, pairs, by, read.arrival, read.located)

    def frame(self, spark: SparkSession, read: Read, builder: FrameBuilder) -> DataFrame:
        return builder(self.direct(read))

    def native_frame(self, spark: SparkSession, read: Read, input_range: InputRange) -> DataFrame:
        raise AssertionError("tasks read all rows")


def _text(value: Any) -> str | None:
    """A value as the log writes it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(" ")
    return str(value)


def _spread(files: list[File], tasks: int) -> list[Split]:
    """Files over tasks, so that each reads about the same; the largest are placed first."""
    splits: list[Split] = [[] for _ in range(tasks)]
    loads = [0] * tasks
    for file in sorted(files, key=lambda item: -item["size"]):
        least = loads.index(min(loads))
        splits[least].append([file["path"], file["place"], file["values"]])
        loads[least] += file["size"]
    return splits


def open_source(context: SourceContext) -> DeltaSource:
    return DeltaSource(context)
