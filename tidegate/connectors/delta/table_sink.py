"""Tables of Delta Lake as a sink: tasks write files aside, one log entry per epoch takes them in.

The entry also has the number of the epoch as the last one of this sink, so that an epoch is there
once, however often it is committed and whoever tries: of two entries after the same version that
name the same sink, deltalake rejects the second. A pipeline of an older generation is kept out by
the generation of the newest one that opened the sink.
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
from tidegate.connectors.changelog import compact_changes
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
from tidegate.errors import RunError, SystemAway, TidegateError
from tidegate.physical.typed import arrow_type
from tidegate.storage import NotFound, open_store, uri
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    from tidegate.connectors.base import StreamRows
    from tidegate.storage import Store


# ---- The changes of an epoch as one merge into a table of Delta Lake: replaced and deleted by key.

_SIGN = "_tg_sign"


def merge_changes(
    table: DeltaLakeTable,
    columns: Sequence[DeltaColumn],
    rows: StreamRows,
    staged: Store,
    names: Sequence[str],
    numbers: dict[str, int],
) -> None:
    """Make the changes of an epoch in one version of the table."""
    ours = {
        name.lower(): column.name for (name, _), column in zip(rows.columns, columns, strict=True)
    }
    keys = [ours[name.lower()] for name in rows.key or ()]
    tables = [pq.read_table(pa.BufferReader(staged.map(name))) for name in names]
    changes = net_changes(pa.concat_tables(tables), rows.kind, keys)
    if not changes.num_rows:
        return
    nullable = {column.name for column in columns if not column.not_null}
    same = " AND ".join(_same(key, key in nullable) for key in keys)
    values = {_quoted(column.name): f"s.{_quoted(column.name)}" for column in columns}
    merger = table.loaded.merge(
        changes,
        same,
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
    table.look_again()


def net_changes(changes: pa.Table, kind: ChangelogKind, keys: Sequence[str]) -> pa.Table:
    """One row per key: its new row, or a row of it that says that it has none any more.

    Tasks stage in any order: of a changelog a row that was given and retracted is none.
    """
    left = compact_changes(changes, kind, keys)
    if OP not in left.column_names:
        return left.append_column(_SIGN, pa.array([1] * left.num_rows, pa.int32()))
    adds = pc.is_in(left.column(OP), pa.array(["+I", "+U"]))
    sign = pc.if_else(adds, pa.scalar(1, pa.int32()), pa.scalar(-1, pa.int32()))
    signed = left.drop_columns([OP]).append_column(_SIGN, sign)
    # A key that has a new row is not deleted: its row is the last of those that say something.
    order = pc.sort_indices(signed, sort_keys=[(_SIGN, "ascending")])
    return compact_changes(signed.take(order), ChangelogKind.UPSERT, keys)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _same(key: str, nullable: bool) -> str:
    one, other = f"t.{_quoted(key)}", f"s.{_quoted(key)}"
    equal = f"{one} = {other}"
    return f"({equal} OR ({one} IS NULL AND {other} IS NULL))" if nullable else equal


# Who writes at the same time wins; after so many losses others are let go first.
_TRIES = 20
_FILE_BYTES = 1 << 28


class DeltaSink:
    """A table that epochs are added to, or whose rows they replace."""

    def __init__(self, context: SinkContext) -> None:
        assert context.rows is not None, "the sink is told what its stream looks like"
        self.rows = context.rows
        self.options = context.sink.options
        self.who = f"the sink {context.sink.name}"
        self.name = context.sink.name
        self.uri = uri(self.options["path"], context.sink.origin.folder)
        self.store = open_store(self.uri)
        # Names of sinks may hold anything, those of files and in a log should not.
        short = hashlib.sha256(self.name.lower().encode()).hexdigest()[:8]
        self.prefix = f"{context.pipeline}-{short}-"
        self.aside = f"_tidegate/{self.prefix}"
        self.owner = f"tidegate/{context.pipeline}/{self.name.lower()}"
        self._table: DeltaLakeTable | None = None
        self._columns: tuple[DeltaColumn, ...] = ()

    @property
    def table(self) -> DeltaLakeTable:
        assert self._table is not None, "the sink is open"
        return self._table

    @property
    def by_key(self) -> bool:
        return bool(self.rows.key)

    # Opening

    def recover(self, committed: CommittedState) -> None:
        with translate_errors(self.who):
            self._table = self._found()
            self._columns = self._fitting(self._table)
            self._open_marker(committed)
        if committed.committables_epoch is not None:
            self.publish(committed.committables_epoch, committed.committables)
        with translate_errors(self.who):
            self._keep_older_out(committed)
        sweep_staged(self.store, f"{self.aside}/staging", committed)

    def _found(self) -> DeltaLakeTable:
        """The table, which must be there."""
        table = open_table(self.uri)
        if table is None and self.options["create_table"]:
            import pyarrow as pa

            fields = [
                pa.field(
                    name, arrow_type(kind), name in self.rows.nullable or not self._is_key(name)
                )
                for name, kind in self.rows.columns
            ]
            create_table(self.uri, pa.schema(fields), self.options["partition_by"] or ())
            table = open_table(self.uri)
        if table is None:
            raise RunError(
                "TG-522",
                f"{self.who} writes the table {self.options['path']}, which does not exist",
                hint="create it, or have it created: create_table = true.",
            )
        return table

    def _is_key(self, name: str) -> bool:
        return name.lower() in {key.lower() for key in self.rows.key or ()}

    def _fitting(self, table: DeltaLakeTable) -> tuple[DeltaColumn, ...]:
        """The columns that rows go to, in the order of the stream."""
        require_supported(table, self.who)
        require_no_row_rules(table, self.who, self.by_key)
        there = table.columns()
        found = tuple(
            matching_column(there, name, arrow_type(kind), kind, self.who)
            for name, kind in self.rows.columns
        )
        for column in there:
            if column not in found and column.not_null:
                raise RunError(
                    "TG-523",
                    f"{self.who}: the column {column.name} of the table must not be NULL, and the "
                    "stream does not have it",
                    hint=f"add {column.name} to the query.",
                )
        self._require_partition(table)
        self._require_keys()
        return found

    def _require_partition(self, table: DeltaLakeTable) -> None:
        wanted = self.options["partition_by"]
        there = table.partition_by
        if wanted is not None and [w.lower() for w in wanted] != [t.lower() for t in there]:
            raise RunError(
                "TG-523",
                f"{self.who}: the table is partitioned by {', '.join(there) or 'nothing'}, and not "
                f"by {', '.join(wanted)}",
                hint="leave out partition_by, or write to another table.",
            )
        missing = {t.lower() for t in there} - {name.lower() for name, _ in self.rows.columns}
        if missing:
            raise RunError(
                "TG-523",
                f"{self.who}: the table is partitioned by {sorted(missing)[0]}, which the stream "
                "does not have",
                hint="add it to the query.",
            )

    def _require_keys(self) -> None:
        for name, kind in self.rows.columns:
            if self._is_key(name) and kind.startswith(
                ("FLOAT", "DOUBLE", "ARRAY", "MAP", "STRUCT")
            ):
                raise RunError(
                    "TG-523",
                    f"{self.who}: rows are replaced by {name}, which is {kind}: such values are "
                    "not safe to compare",
                    hint="key the stream by a number, a text or a time, with a CAST for example.",
                )

    # The marker

    @property
    def _newest(self) -> str:
        return f"{self.owner}/newest"

    @property
    def _anybody(self) -> str:
        """What all pipelines write that have a sink of this name."""
        return f"tidegate/{self.name.lower()}"

    def _marker(self) -> tuple[EpochId, int] | None:
        """The last epoch that is there, and the newest generation."""
        number = self.table.written(self.owner)
        if number is None:
            return None
        return epoch_from_number(number), self.table.written(self._newest) or 0

    def _open_marker(self, committed: CommittedState) -> None:
        marker = self._marker()
        if marker is None:
            if committed.staged is not None and committed.committables:
                raise self._no_marker()
            self._reject_doubles(committed)
            self._note({self.owner: epoch_number(EpochId(0, -1)), self._newest: 0})
        elif marker[0].epoch >= 0 and not committed.contains(marker[0]):
            raise self._strange(marker[0], committed.last)

    def _keep_older_out(self, committed: CommittedState) -> None:
        """From now on nobody commits for a generation before this one."""
        newest = committed.last.generation if committed.last is not None else 0
        marker = self._marker()
        if marker is not None and marker[1] < newest:
            self._note({self._newest: newest})

    def _note(self, numbers: dict[str, int]) -> None:
        """Numbers of ours in the log, without rows."""
        self._commit_actions([], numbers)

    def _no_marker(self) -> TidegateError:
        return RunError(
            "TG-526",
            f"the log of {self.options['path']} no longer knows {self.who}: nobody knows which "
            "rows the table has",
            hint="put the table back from a copy, or write to another one.",
        )

    def _strange(self, has: EpochId, last: EpochId | None) -> TidegateError:
        return sink_ahead_error(
            f"the table {self.options['path']} has epoch {has.epoch} of generation "
            f"{has.generation} of {self.who}, which is ahead of the pipeline, or of another "
            "generation",
            "put back the data directory that belongs to this table, or write to another table",
            last,
        )

    def _reject_doubles(self, committed: CommittedState) -> None:
        """A pipeline that starts anew would write rows again that an earlier one has written."""
        wrote = self.table.written(self._anybody)
        if self.options["existing"] == "append" or wrote is None or wrote < committed.keep_before_generation:
            return
        raise RunError(
            "TG-525",
            f"the table {self.options['path']} holds rows that an earlier pipeline wrote for "
            f"{self.who}; this one starts anew and would write them again",
            hint="remove the table, choose another path, or say existing = 'append'.",
        )

    # Epochs

    def columns(self, stream_columns: SqlColumns) -> SqlColumns | None:
        return None

    def writer_factory(self, schema: pa.Schema) -> DeltaWriterFactory:
        assert (OP in schema.names) == self.rows.has_op, "rows look as they were said to"
        # What is merged is divided by deltalake.
        partition = () if self.by_key else self.table.partition_by
        files = FilesWriterFactory(
            self.store.child(f"{self.aside}/staging").uri,
            "parquet",
            partition,
            None,
            None,
            _FILE_BYTES,
        )
        pairs = zip(self.rows.columns, self._columns, strict=True)
        return DeltaWriterFactory(
            self.name,
            files,
            tuple((ours, column.name) for (ours, _), column in pairs),
            tuple(column.name for column in self._columns if column.not_null),
            tuple(self.table.partition_by),
        )

    def publish(self, epoch: EpochId, committables: Sequence[Committable]) -> None:
        if not committables:
            return
        with translate_errors(self.who):
            for _ in range(_TRIES):
                self.table.look_again()
                if self._has(epoch) or self._write(epoch, committables):
                    break
            else:
                raise SystemAway(f"{self.who}: others write to the table all the time")
        if self.by_key:
            self.store.delete(
                [f"{self.aside}/staging/{committable['staged']}" for committable in committables]
            )

    def _has(self, epoch: EpochId) -> bool:
        marker = self._marker()
        if marker is None:
            raise self._no_marker()
        last, newest = marker
        if last.epoch >= epoch.epoch:
            return True
        if newest > epoch.generation:
            raise RunError(
                "TG-527",
                f"{self.who} was opened by generation {newest} of its pipeline, and epoch "
                f"{epoch.epoch} is of generation {epoch.generation}",
                hint="stop this process: the pipeline went back to a checkpoint in another one.",
            )
        return False

    def _write(self, epoch: EpochId, committables: Sequence[Committable]) -> bool:
        """Whether the epoch is in the log now; if not, somebody else's entry came between."""
        numbers = {
            self.owner: epoch_number(epoch),
            self._newest: epoch.generation,
            self._anybody: epoch.generation,
        }
        before = self.table.version
        try:
            if self.by_key:
                staged = self.store.child(f"{self.aside}/staging")
                names = [committable["staged"] for committable in committables]
                merge_changes(self.table, self._columns, self.rows, staged, names, numbers)
                if not self._has(epoch):
                    # What changes nothing makes no version, and is known to be done all the same.
                    self._note(numbers)
            else:
                self._commit_actions(
                    [self._shown(epoch, committable) for committable in committables], numbers
                )
        except import_deltalake().exceptions.CommitFailedError:
            return False
        except NotFound:
            # Whoever was faster has also removed what was staged.
            self.table.look_again()
            if not self._has(epoch):
                raise
            return True
        self._make_durable(before)
        return True

    def _shown(self, epoch: EpochId, committable: Committable) -> Any:
        """A staged file at its place, as the log tells of it."""
        from deltalake.transaction import AddAction

        name = f"{self.prefix}{epoch.stamp}-{committable['name']}"
        self.store.move_new(f"{self.aside}/staging/{committable['staged']}", name)
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
        table.loaded.create_write_transaction(
            actions,
            "append",
            table.loaded.schema(),
            list(table.partition_by),
            commit_properties=commit_properties(numbers),
        )
        table.look_again()

    def _make_durable(self, before: int) -> None:
        """deltalake syncs nothing: what it has written is made to survive a loss of power."""
        logs = [f"{LOG}/{v:020d}.json" for v in range(before + 1, self.table.version + 1)]
        added = [name for log in logs for name in added_files(self.store.get(log))]
        self.store.sync_files([*added, *logs] if self.by_key else logs)


def added_files(entry: bytes) -> list[str]:
    """The files that a log entry takes in."""
    actions = [json.loads(line) for line in entry.splitlines() if line.strip()]
    return [unquote(action["add"]["path"]) for action in actions if "add" in action]


def open_sink(context: SinkContext) -> DeltaSink:
    return DeltaSink(context)
