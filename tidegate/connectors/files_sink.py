"""Directories of files as a sink: tasks write aside, a commit gives files their final names.

A final name is made of pipeline, sink, generation, epoch and task, so a commit can be repeated. A
marker beside the data says which epoch was the last. Nothing that was committed is ever deleted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.connectors.files_tasks import FilesStagerFactory
from tidegate.connectors.protocols import Decided, EpochId, SinkContext, SqlColumns, Token
from tidegate.connectors.staged import sweep_staged
from tidegate.errors import RunError, TidegateError
from tidegate.storage import NotThere, StorageError, open_store, uri

if TYPE_CHECKING:
    import pyarrow as pa

_OURS = "_tidegate"
_MARKER = "committed.json"
_MICROSECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
# The column that holds a record as text, where the format is one of text.
LINE = "_tg_line_out"


class FilesSink:
    """A directory that epochs are added to."""

    def __init__(self, context: SinkContext) -> None:
        self.context = context
        self.options = context.sink.options
        self.store = open_store(uri(self.options["path"]))
        self.prefix = f"{context.pipeline}-{context.sink.name.lower()}-"
        self.aside = f"{_OURS}/{self.prefix}"
        self.last: EpochId | None = None

    # Opening

    def recover(self, decided: Decided) -> None:
        try:
            self._require_writable()
            self.last = self._marker()
            self._refuse_strangers(decided)
            if self.last is None:
                self._refuse_doubles(decided)
                self._mark(EpochId(0, -1))
            made_in = decided.made_in
            if made_in is not None and self._is_behind(made_in):
                self.commit(made_in, decided.tokens)
            sweep_staged(self.store, f"{self.aside}/staging", decided)
        except StorageError as error:
            if error.retryable:
                raise
            raise self._cannot(error.message) from None

    def _is_behind(self, epoch: EpochId) -> bool:
        return self.last is None or self.last < epoch

    def _require_writable(self) -> None:
        name = f"{self.aside}/writable"
        self.store.put(name, b"")
        self.store.delete([name])

    def _marker(self) -> EpochId | None:
        try:
            stored = json.loads(self.store.get(f"{self.aside}/{_MARKER}"))
            return EpochId(int(stored.get("generation", 0)), int(stored["epoch"]))
        except NotThere:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._cannot(f"its marker {self.aside}/{_MARKER} is damaged ({error})") from None

    def _cannot(self, why: str) -> TidegateError:
        return RunError(
            "TG-504",
            f"the sink {self.context.sink.name} cannot write to {self.options['path']}: {why}",
            hint="create the directory, or correct the option path.",
        )

    def _refuse_strangers(self, decided: Decided) -> None:
        """Files or a marker that the manifest knows nothing of: never skipped, never deleted."""
        there = self._epochs_there()
        if self.last is None and there:
            raise self._strange(f"holds epochs up to {max(there).epoch}", "is gone", None)
        if self.last is not None and self.last.epoch >= 0 and not decided.knows(self.last):
            raise self._strange(
                f"has epoch {self.last.epoch} of generation {self.last.generation}",
                "is ahead of the pipeline, or of another generation",
                decided.last,
            )
        strange = [epoch for epoch in there if not decided.knows(epoch)]
        if strange:
            says = self.last.epoch if self.last is not None else -1
            has = f"holds epochs up to {max(strange).epoch}"
            raise self._strange(has, f"says {says}", decided.last)

    def _strange(self, has: str, marker: str, last: EpochId | None) -> TidegateError:
        at = f", and the pipeline is at epoch {last.epoch}" if last is not None else ""
        back = ""
        if last is not None:
            back = (
                f"; or leave them there: RESTORE FROM CHECKPOINT {last.epoch} WITH (sinks = "
                "'keep'); (rows that are read again will be there twice)"
            )
        return RunError(
            "TG-504",
            f"{self.options['path']} {has} of the sink {self.context.sink.name}, but its marker "
            f"{self.store.uri}/{self.aside}/{_MARKER} {marker}{at}",
            hint="put back the data directory and the marker that belong to these files, or write "
            f"to another path{back}.",
        )

    def _epochs_there(self) -> set[EpochId]:
        """The epochs that files of this sink are named after."""
        found = set()
        for item in self.store.list():
            name = item.name.rpartition("/")[2]
            if name.startswith(self.prefix):
                generation, epoch, _ = name.removeprefix(self.prefix).split("-", 2)
                found.add(EpochId(int(generation), int(epoch)))
        return found

    def _refuse_doubles(self, decided: Decided) -> None:
        """A pipeline that starts anew would write rows again that an earlier one has written."""
        if self.options["existing"] == "append":
            return
        others = f"-{self.context.sink.name.lower()}-"
        for item in self.store.list(_OURS):
            owner, _, name = item.name.removeprefix(f"{_OURS}/").partition("/")
            if name != _MARKER or not owner.endswith(others) or owner == self.prefix:
                continue
            marker = json.loads(self.store.get(item.name))
            if int(marker["epoch"]) >= 0 and int(marker["generation"]) >= decided.kept_before:
                raise RunError(
                    "TG-504",
                    f"{self.options['path']} holds rows that an earlier pipeline wrote for the "
                    f"sink {self.context.sink.name}; this one starts anew and would write them "
                    "again",
                    hint="remove the directory, choose another path, or say existing = 'append'.",
                )

    # Epochs

    def columns(self, given: SqlColumns) -> SqlColumns | None:
        """What the sink wants instead of the columns: a record as text, and its partition."""
        from tidegate.physical.stage_sql import quoted

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
        # Spark's own formats end at the milliseconds.
        given = {
            "timestampFormat": _MICROSECONDS + "XXX",
            "timestampNTZFormat": _MICROSECONDS,
        }
        if self.options["format"] == "csv":
            given |= {"sep": self.options["delimiter"], "escape": '"'}
            given |= {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
        return given

    @property
    def _partition(self) -> set[str]:
        return {name.lower() for name in self.options["partition_by"] or ()}

    def stager(self, schema: pa.Schema) -> FilesStagerFactory:
        header = None
        if self.options["format"] == "csv" and self.options["header"]:
            header = self._header([n for n in schema.names if n.lower() not in self._partition])
        return FilesStagerFactory(
            self.store.child(f"{self.aside}/staging").uri,
            self.options["format"],
            tuple(self.options["partition_by"] or ()),
            header,
        )

    def _header(self, names: Sequence[str]) -> str:
        delimiter = str(self.options["delimiter"]).replace("\\t", "\t")
        return delimiter.join(_csv_text(name, delimiter) for name in names)

    def commit(self, epoch: EpochId, tokens: Sequence[Token]) -> None:
        if self.last == epoch or not tokens:
            return
        folders = set()
        for token in tokens:
            goal = "/".join([*token["folder"], f"{self.prefix}{epoch.stamp}-{token['name']}"])
            self.store.move_new(f"{self.aside}/staging/{token['staged']}", goal)
            folders.add("/".join(token["folder"]))
        self.store.sync(folders)
        self._mark(epoch)

    def _mark(self, epoch: EpochId) -> None:
        content: dict[str, Any] = {"generation": epoch.generation, "epoch": epoch.epoch}
        self.store.put(f"{self.aside}/{_MARKER}", json.dumps(content).encode())
        self.last = epoch


def _sql_map(given: dict[str, str]) -> str:
    from tidegate.sql.dialect import text_literal

    return f"map({', '.join(text_literal(part) for pair in given.items() for part in pair)})"


def _csv_text(name: str, delimiter: str) -> str:
    plain = not any(sign in name for sign in (delimiter, '"', "\n"))
    return name if plain else '"' + name.replace('"', '""') + '"'
