"""The delta sink: tasks stage files, and one log entry per epoch adds them to the table.

The entry also sets the commit marker of the sink, so that an epoch is published once: deltalake
rejects the second of two entries that follow the same version and set the same marker. The marker
also contains the newest generation that opened the sink, which fences older generations.

A sink that appends renames the staged files and adds them to the log. A sink that updates by key
merges their net changes on the driver.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.columns import OP
from tidegate.connectors.base import (
    Committable,
    CommittedState,
    EpochId,
    SinkContext,
    SqlColumns,
    sink_ahead_error,
    sweep_staged,
)
from tidegate.connectors.changelog_compaction import compact_changes
from tidegate.connectors.delta.table import (
    LOG,
    DeltaColumn,
    DeltaLakeTable,
    commit_properties,
    create_table,
    epoch_from_number,
    epoch_number,
    import_deltalake,
    matching_column,
    open_table,
    require_no_row_rules,
    require_supported,
    translate_errors,
)
from tidegate.connectors.delta.table_tasks import DeltaWriterFactory
from tidegate.connectors.files.writer import NULL_FOLDER, FilesWriterFactory
from tidegate.errors import RunError, SystemUnavailable, TidegateError
from tidegate.physical.typed import arrow_type
from tidegate.storage import NotFound, open_store, uri
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    from tidegate.connectors.base import StreamSchema
    from tidegate.storage import Store


# ---- Merging the changes of an epoch by key.

_SIGN = "_tg_sign"


def merge_changes(
    table: DeltaLakeTable,
    columns: Sequence[DeltaColumn],
    rows: StreamSchema,
    staged: Store,
    names: Sequence[str],
    numbers: dict[str, int],
) -> None:
    """Merge the staged changes of an epoch into the table, as one version."""
    table_names = {
        name.lower(): column.name for (name, _), column in zip(rows.columns, columns, strict=True)
    }
    keys = [table_names[name.lower()] for name in rows.key or ()]
    tables = [pq.read_table(pa.BufferReader(staged.map(name))) for name in names]
    changes = net_changes(pa.concat_tables(tables), rows.kind, keys)
    if not changes.num_rows:
        return
    nullable = {column.name for column in columns if not column.not_null}
    same_key = " AND ".join(_same_key(key, key in nullable) for key in keys)
    values = {_quote(column.name): f"s.{_quote(column.name)}" for column in columns}
    merger = table.delta_table.merge(
        changes,
        same_key,
        source_alias="s",
        target_alias="t",
        commit_properties=commit_properties(numbers),
    )
    (
        merger.when_matched_delete(f"s.{_SIGN} < 0")
        .when_matched_update(values)
        .when_not_matched_insert(values, f"s.{_SIGN} > 0")
        .execute()
    )
    table.refresh()


def net_changes(changes: pa.Table, kind: ChangelogKind, keys: Sequence[str]) -> pa.Table:
    """Reduce changes to one row per key, with the sign 1 for an upsert and -1 for a delete.

    Tasks stage changes in any order, so additions and retractions of equal rows cancel out.
    """
    compacted = compact_changes(changes, kind, keys)
    if OP not in compacted.column_names:
        return compacted.append_column(_SIGN, pa.array([1] * compacted.num_rows, pa.int32()))
    adds = pc.is_in(compacted.column(OP), pa.array(["+I", "+U"]))
    sign = pc.if_else(adds, pa.scalar(1, pa.int32()), pa.scalar(-1, pa.int32()))
    signed = compacted.drop_columns([OP]).append_column(_SIGN, sign)
    # Sort additions last, so that a key with a new row is not deleted.
    order = pc.sort_indices(signed, sort_keys=[(_SIGN, "ascending")])
    return compact_changes(signed.take(order), ChangelogKind.UPSERT, keys)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _same_key(key: str, nullable: bool) -> str:
    one, other = f"t.{_quote(key)}", f"s.{_quote(key)}"
    equal = f"{one} = {other}"
    return f"({equal} OR ({one} IS NULL AND {other} IS NULL))" if nullable else equal


# ---- The sink.

# How often a commit is tried again at once after a conflict with another writer.
_TRIES = 20
_FILE_BYTES = 1 << 28


class DeltaSink:
    """Appends the rows of a stream to a table, or updates the table by key."""

    def __init__(self, context: SinkContext) -> None:
        assert context.schema is not None, "the context describes the rows of the stream"
        self.stream_schema = context.schema
        self.options = context.sink.options
        self.label = f"the sink {context.sink.name}"
        self.name = context.sink.name
        self.uri = uri(self.options["path"], context.sink.script.folder)
        self.store = open_store(self.uri)
        # The name of a sink may contain characters that file names should not.
        short = hashlib.sha256(self.name.lower().encode()).hexdigest()[:8]
        self.prefix = f"{context.stream_id}-{short}-"
        self.internal = f"_tidegate/{self.prefix}"
        self.application_id = f"tidegate/{context.stream_id}/{self.name.lower()}"
        self._table: DeltaLakeTable | None = None
        self._columns: tuple[DeltaColumn, ...] = ()

    @property
    def table(self) -> DeltaLakeTable:
        assert self._table is not None, "the sink is open"
        return self._table

    @property
    def by_key(self) -> bool:
        return bool(self.stream_schema.key)

    def recover(self, committed: CommittedState) -> None:
        with translate_errors(self.label):
            self._table = self._open_table()
            self._columns = self._match_columns(self._table)
            self._open_marker(committed)
        if committed.committables_epoch is not None:
            self.publish(committed.committables_epoch, committed.committables)
        with translate_errors(self.label):
            self._fence_older_generations(committed)
        sweep_staged(self.store, f"{self.internal}/staging", committed)

    def _open_table(self) -> DeltaLakeTable:
        """Open or create the table."""
        table = open_table(self.uri)
        if table is None and self.options["create_table"]:
            import pyarrow as pa

            fields = [
                pa.field(
                    name,
                    arrow_type(sql_type),
                    name in self.stream_schema.nullable or not self._is_key(name),
                )
                for name, sql_type in self.stream_schema.columns
            ]
            create_table(self.uri, pa.schema(fields), self.options["partition_by"] or ())
            table = open_table(self.uri)
        if table is None:
            raise RunError(
                "TG-522",
                f"{self.label} writes the table {self.options['path']}, which does not exist",
                hint="create it, or set create_table = true.",
            )
        return table

    def _is_key(self, name: str) -> bool:
        return name.lower() in {key.lower() for key in self.stream_schema.key or ()}

    def _match_columns(self, table: DeltaLakeTable) -> tuple[DeltaColumn, ...]:
        """Return the columns of the table in the order of the stream, after checking the table."""
        require_supported(table, self.label)
        require_no_row_rules(table, self.label, self.by_key)
        table_columns = table.columns()
        columns = tuple(
            matching_column(table_columns, name, arrow_type(sql_type), sql_type, self.label)
            for name, sql_type in self.stream_schema.columns
        )
        for column in table_columns:
            if column not in columns and column.not_null:
                raise RunError(
                    "TG-523",
                    f"{self.label}: the column {column.name} of the table is NOT NULL, but the "
                    "stream does not have it",
                    hint=f"add {column.name} to the query.",
                )
        self._require_partition(table)
        self._require_comparable_keys()
        return columns

    def _require_partition(self, table: DeltaLakeTable) -> None:
        declared = self.options["partition_by"]
        actual = table.partition_by
        if declared is not None and [w.lower() for w in declared] != [t.lower() for t in actual]:
            raise RunError(
                "TG-523",
                f"{self.label}: the table is partitioned by {', '.join(actual) or 'nothing'}, not "
                f"by {', '.join(declared)}",
                hint="leave out partition_by, or write to another table.",
            )
        missing = {t.lower() for t in actual} - {
            name.lower() for name, _ in self.stream_schema.columns
        }
        if missing:
            raise RunError(
                "TG-523",
                f"{self.label}: the table is partitioned by {sorted(missing)[0]}, which the stream "
                "does not have",
                hint="add it to the query.",
            )

    def _require_comparable_keys(self) -> None:
        for name, sql_type in self.stream_schema.columns:
            if self._is_key(name) and sql_type.startswith(
                ("FLOAT", "DOUBLE", "ARRAY", "MAP", "STRUCT")
            ):
                raise RunError(
                    "TG-523",
                    f"{self.label}: rows are updated by {name}, which is {sql_type}: such values "
                    "cannot be compared safely",
                    hint="use a number, a text or a timestamp as key, for example with a CAST.",
                )

    # The commit marker.

    @property
    def _newest_generation(self) -> str:
        return f"{self.application_id}/newest"

    @property
    def _any_pipeline(self) -> str:
        """The application that all pipelines with a sink of this name write."""
        return f"tidegate/{self.name.lower()}"

    def _marker(self) -> tuple[EpochId, int] | None:
        """Return the last published epoch and the newest generation."""
        number = self.table.application_version(self.application_id)
        if number is None:
            return None
        return epoch_from_number(number), self.table.application_version(
            self._newest_generation
        ) or 0

    def _open_marker(self, committed: CommittedState) -> None:
        marker = self._marker()
        if marker is None:
            if committed.staged_epoch is not None and committed.committables:
                raise self._lost_marker_error()
            self._reject_second_pipeline(committed)
            self._write_numbers(
                {self.application_id: epoch_number(EpochId(0, -1)), self._newest_generation: 0}
            )
        elif marker[0].epoch >= 0 and not committed.contains(marker[0]):
            raise self._ahead_error(marker[0], committed.last)

    def _fence_older_generations(self, committed: CommittedState) -> None:
        """Record the generation, so that older generations cannot publish any more."""
        newest = committed.last.generation if committed.last is not None else 0
        marker = self._marker()
        if marker is not None and marker[1] < newest:
            self._write_numbers({self._newest_generation: newest})

    def _write_numbers(self, numbers: dict[str, int]) -> None:
        """Write application versions without rows."""
        self._commit_actions([], numbers)

    def _lost_marker_error(self) -> TidegateError:
        return RunError(
            "TG-526",
            f"the log of {self.options['path']} no longer contains the commit marker of "
            f"{self.label}: it is unknown which rows the table contains",
            hint="restore the table from a copy, or write to another one.",
        )

    def _ahead_error(self, published: EpochId, last: EpochId | None) -> TidegateError:
        return sink_ahead_error(
            f"the table {self.options['path']} contains epoch {published.epoch} of generation "
            f"{published.generation} of {self.label}, which this pipeline has not committed",
            "restore the data directory that belongs to this table, or write to another table",
            last,
        )

    def _reject_second_pipeline(self, committed: CommittedState) -> None:
        """Reject a new pipeline that would write the rows of an earlier one again."""
        generation = self.table.application_version(self._any_pipeline)
        if (
            self.options["existing"] == "append"
            or generation is None
            or generation < committed.keep_before_generation
        ):
            return
        raise RunError(
            "TG-525",
            f"the table {self.options['path']} contains rows that an earlier pipeline wrote for "
            f"{self.label}; this pipeline starts from the beginning and would write them again",
            hint="remove the table, choose another path, or set existing = 'append'.",
        )

    # Writing.

    def columns(self, stream_columns: SqlColumns) -> SqlColumns | None:
        return None

    def row_encoder(self, schema: pa.Schema) -> None:
        """Return None: rows are written unchanged."""

    def writer_factory(self, schema: pa.Schema) -> DeltaWriterFactory:
        assert (OP in schema.names) == self.stream_schema.has_op, (
            "rows have _op if the stream declares it"
        )
        # deltalake partitions the rows that it merges.
        partition = () if self.by_key else self.table.partition_by
        files = FilesWriterFactory(
            self.store.child(f"{self.internal}/staging").uri,
            "parquet",
            partition,
            None,
            None,
            _FILE_BYTES,
        )
        pairs = zip(self.stream_schema.columns, self._columns, strict=True)
        return DeltaWriterFactory(
            self.name,
            files,
            tuple((name, column.name) for (name, _), column in pairs),
            tuple(column.name for column in self._columns if column.not_null),
            tuple(self.table.partition_by),
        )

    def publish(self, epoch: EpochId, committables: Sequence[Committable]) -> None:
        if not committables:
            return
        with translate_errors(self.label):
            for _ in range(_TRIES):
                self.table.refresh()
                if self._is_published(epoch) or self._try_publish(epoch, committables):
                    break
            else:
                raise SystemUnavailable(f"{self.label}: other writers keep changing the table")
        if self.by_key:
            self.store.delete(
                [f"{self.internal}/staging/{committable['staged']}" for committable in committables]
            )

    def _is_published(self, epoch: EpochId) -> bool:
        marker = self._marker()
        if marker is None:
            raise self._lost_marker_error()
        last, newest = marker
        if last.epoch >= epoch.epoch:
            return True
        if newest > epoch.generation:
            raise RunError(
                "TG-527",
                f"{self.label} was opened by generation {newest} of its pipeline, and epoch "
                f"{epoch.epoch} is of generation {epoch.generation}",
                hint="stop this process: another one has restored the pipeline to a checkpoint.",
            )
        return False

    def _try_publish(self, epoch: EpochId, committables: Sequence[Committable]) -> bool:
        """Write the log entry of the epoch. Returns False after a conflict with another writer."""
        numbers = {
            self.application_id: epoch_number(epoch),
            self._newest_generation: epoch.generation,
            self._any_pipeline: epoch.generation,
        }
        before = self.table.version
        try:
            if self.by_key:
                staged = self.store.child(f"{self.internal}/staging")
                names = [committable["staged"] for committable in committables]
                merge_changes(self.table, self._columns, self.stream_schema, staged, names, numbers)
                if not self._is_published(epoch):
                    # A merge without changes creates no version. Write the marker separately.
                    self._write_numbers(numbers)
            else:
                self._commit_actions(
                    [self._add_action(epoch, committable) for committable in committables], numbers
                )
        except import_deltalake().exceptions.CommitFailedError:
            return False
        except NotFound:
            # Another process has published the epoch and deleted the staged files.
            self.table.refresh()
            if not self._is_published(epoch):
                raise
            return True
        self._make_durable(before)
        return True

    def _add_action(self, epoch: EpochId, committable: Committable) -> Any:
        """Rename a staged file to its final name, and return its action for the log."""
        from deltalake.transaction import AddAction

        name = f"{self.prefix}{epoch.stamp}-{committable['name']}"
        self.store.move_new(f"{self.internal}/staging/{committable['staged']}", name)
        pairs = [part.partition("=") for part in committable["folder"]]
        values = {key: None if v == NULL_FOLDER else unquote(v) for key, _, v in pairs}
        stats = json.dumps({"numRecords": committable["rows"]})
        return AddAction(
            name, committable["bytes"], values, time.time_ns() // 1_000_000, True, stats
        )

    def _commit_actions(self, actions: list[Any], numbers: dict[str, int]) -> None:
        table = self.table
        if actions:
            self.store.sync([""])
        table.delta_table.create_write_transaction(
            actions,
            "append",
            table.delta_table.schema(),
            list(table.partition_by),
            commit_properties=commit_properties(numbers),
        )
        table.refresh()

    def _make_durable(self, before: int) -> None:
        """Fsync the log entries and files that deltalake has written, because it does not."""
        logs = [f"{LOG}/{v:020d}.json" for v in range(before + 1, self.table.version + 1)]
        added = [name for log in logs for name in added_files(self.store.get(log))]
        self.store.sync_files([*added, *logs] if self.by_key else logs)


def added_files(entry: bytes) -> list[str]:
    """Return the files that a log entry adds."""
    actions = [json.loads(line) for line in entry.splitlines() if line.strip()]
    return [unquote(action["add"]["path"]) for action in actions if "add" in action]


def open_sink(context: SinkContext) -> DeltaSink:
    return DeltaSink(context)
