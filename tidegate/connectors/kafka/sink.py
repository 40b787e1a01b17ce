"""Topics as a sink: tasks spool records, a commit produces them in a transaction with its epoch."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.columns import OP
from tidegate.connectors.base import (
    Committable,
    CommittedState,
    EpochId,
    SinkContext,
    SqlColumns,
    StreamRows,
    sink_ahead_error,
    sweep_staged,
)
from tidegate.connectors.files.sink import json_options
from tidegate.connectors.kafka.avro import (
    GONE,
    KEY,
    AvroEncoder,
    AvroWriterFactory,
    Registry,
    avro_schema,
    require_avro,
)
from tidegate.connectors.kafka.client import Topics
from tidegate.connectors.kafka.source import connection_of
from tidegate.connectors.kafka.transactions import (
    Fenced,
    HangingTransaction,
    Marker,
    Transactions,
    spooled,
)
from tidegate.connectors.memory.connector import read_table
from tidegate.errors import RunError, SystemUnavailable, TidegateError, did_you_mean
from tidegate.storage import NotFound, open_store
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.connectors.memory.rows import ArrowWriterFactory

_VALUE = "_tg_value_out"
# What this machine knows of the marker, for when the broker has forgotten it.
_KNOWN = "committed.json"


class KafkaSink:
    """A topic that epochs are added to."""

    def __init__(self, context: SinkContext) -> None:
        self.context = context
        self.rows = context.rows or StreamRows(())
        self.options = context.sink.options
        self.topic = str(self.options["topic"])
        self.owner = uuid.uuid4().hex
        self.name = f"tidegate-{context.pipeline}-{context.sink.name.lower()}"
        self.connection = connection_of(f"the sink {context.sink.name}", self.options)
        self.store = open_store(context.data).child(f"spool-{context.sink.name.lower()}")
        self.transactions = Transactions(
            self.connection, self.name, self.topic, self.options["transaction_timeout"]
        )
        self.last: EpochId | None = None
        # Whether a transaction failed since the marker was read: it may have been committed.
        self.outcome_unknown = False
        self.failure: TidegateError | None = None
        self.key = self._key()
        self.is_avro = self.options["format"] == "avro"
        self.encoder: AvroEncoder | None = None
        if self.is_avro:
            require_avro()

    def _key(self) -> tuple[str, ...] | None:
        """The columns of keys; None if records have none."""
        given: tuple[str, ...] | None = self.options["key"]
        own = self.rows.key
        if self.rows.kind is not ChangelogKind.UPSERT or own is None:
            return given
        if given and {name.lower() for name in given} != {name.lower() for name in own}:
            raise RunError(
                "TG-210",
                f"the stream {self.context.sink.source} replaces rows by {_listed(own)}, and the "
                f"sink {self.context.sink.name} is keyed by {_listed(given)}",
                hint="leave out the option key.",
            )
        if self.options["key_format"] == "text" and len(own) != 1:
            raise RunError(
                "TG-210",
                f"as text a key has one column, and the stream {self.context.sink.source} replaces "
                f"rows by {_listed(own)}",
                hint="use key_format = 'json'.",
            )
        return given or own

    # Opening

    def recover(self, committed: CommittedState) -> None:
        self._require_topic()
        if self.is_avro:
            self.encoder = self._encoder()
        try:
            marker = self.transactions.open()
        except Fenced:
            raise self._written_by_another() from None
        except HangingTransaction:
            marker, unknown = None, self._hanging()
        else:
            unknown = self._lost_marker(committed)
        self.last = marker.epoch if marker else self._published_epoch(committed, unknown)
        if self.last is not None and self.last.epoch >= 0 and not committed.contains(self.last):
            raise self._strange(self.last, committed)
        # Whoever comes back from being thought dead finds out that it is not the owner any more.
        self._write((), self.last or EpochId(0, -1))
        committables_epoch = committed.committables_epoch
        if committables_epoch is not None and (self.last is None or self.last < committables_epoch):
            self.publish(committables_epoch, committed.committables)
        sweep_staged(self.store, "", committed)

    def _require_topic(self) -> None:
        _, known = Topics(self.connection).partitions()
        if self.topic not in known:
            own = [name for name in known if not name.startswith("__")]
            raise RunError(
                "TG-522",
                f"the sink {self.context.sink.name} writes to the topic {self.topic}, which is not "
                f"on {self.options['brokers']}",
                hint=f"create it first; {did_you_mean(self.topic, own, 'topics there')}",
            )

    def _encoder(self) -> AvroEncoder:
        """The schema of the columns, which a registry gives a number."""
        import pyarrow as pa

        from tidegate.physical.typed import arrow_type

        columns = [(name, arrow_type(kind)) for name, kind in self.context.columns]
        if self.rows.kind is ChangelogKind.UPSERT:
            columns = [item for item in columns if item[0] != OP]
        schema = json.dumps(avro_schema(self.topic, pa.schema(columns)))
        registry = Registry.of(self.connection.owner, self.options)
        number = None if registry is None else registry.register(f"{self.topic}-value", schema)
        return AvroEncoder(schema, number)

    def _published_epoch(self, committed: CommittedState, unknown: TidegateError) -> EpochId | None:
        """Return the last published epoch if the marker is missing or cannot be read.

        Either nothing was ever published, or the data directory must confirm that the last staged
        epoch was: publishing it again would duplicate its rows. Otherwise raise `unknown`.
        """
        staged = committed.staged
        if staged is None or staged.generation < committed.keep_before_generation:
            return None
        try:
            published = json.loads(self.store.get(_KNOWN))
        except NotFound:
            published = None
        if published == [staged.generation, staged.epoch]:
            return staged
        self.transactions.close()
        raise unknown

    def _lost_marker(self, committed: CommittedState) -> TidegateError:
        """Brokers delete the marker of a sink that has not written for a week, by default."""
        epoch = committed.staged.epoch if committed.staged is not None else -1
        return RunError(
            "TG-526",
            f"the commit marker of the sink {self.context.sink.name} is gone (the offset of the "
            f"group {self.name} on {self.options['brokers']}): it is unknown whether the topic "
            f"{self.topic} has epoch {epoch}",
            hint=f"if it may have it: RESTORE FROM CHECKPOINT {epoch} WITH (sinks = 'keep');",
        )

    def _hanging(self) -> TidegateError:
        return SystemUnavailable(
            f"{self.connection.owner} cannot read its commit marker: the broker has left a "
            f"transaction of {self.name} on the topic {self.topic} open",
            "Kafka 4.3.0 and 4.3.1 do this after a crash (KAFKA-20734). End it with "
            "kafka-transactions.sh (find-hanging, then abort), also on __consumer_offsets.",
        )

    def _strange(self, marker: EpochId, committed: CommittedState) -> TidegateError:
        return sink_ahead_error(
            f"the topic {self.topic} has epoch {marker.epoch} of generation {marker.generation} of "
            f"the sink {self.context.sink.name}, which is ahead of the pipeline, or of another "
            "generation",
            "put back the data directory that belongs to it, or choose another topic",
            committed.last,
        )

    def _written_by_another(self) -> TidegateError:
        self.failure = RunError(
            "TG-527",
            f"another process writes the sink {self.context.sink.name} to the topic {self.topic} "
            "now; this one has stopped, and nothing is there twice",
            hint="run one of them only.",
        )
        return self.failure

    # Epochs

    def columns(self, given: SqlColumns) -> SqlColumns | None:
        """Keys and values, or what tasks make values of; a row that goes is a key without one."""
        op = next((sql for sql, name in given if name == OP), None)
        upsert = self.rows.kind is ChangelogKind.UPSERT
        written = [(sql, name) for sql, name in given if not (upsert and name == OP)]
        goes = upsert and op is not None
        key = (self._key_sql(given), KEY)
        if self.is_avro:
            return [key, (f"{op} IN ('-U', '-D')" if goes else "false", GONE), *written]
        value = _json(written)
        if goes:
            value = f"CASE WHEN {op} NOT IN ('-U', '-D') THEN {value} END"
        return [key, (value, _VALUE)]

    def _key_sql(self, given: SqlColumns) -> str:
        if self.key is None:
            return "CAST(NULL AS STRING)"
        columns = {name.lower(): (sql, name) for sql, name in given}
        chosen = [columns[name.lower()] for name in self.key if name.lower() in columns]
        if self.options["key_format"] == "text" and len(chosen) == 1:
            return f"CAST({chosen[0][0]} AS STRING)"
        return _json(chosen, nulls=True)

    def writer_factory(self, schema: pa.Schema) -> ArrowWriterFactory | AvroWriterFactory:
        from tidegate.connectors.memory.rows import ArrowWriterFactory

        spool = ArrowWriterFactory(self.store.uri)
        if not self.is_avro:
            return spool
        assert self.encoder is not None, "a sink is opened before tasks write"
        return AvroWriterFactory(spool, self.encoder)

    def publish(self, epoch: EpochId, committables: Sequence[Committable]) -> None:
        if self.failure is not None:
            raise self.failure
        if not committables or (self.last is not None and self.last >= epoch):
            return
        # Names begin with epoch and task: so rows are in the order in which they were read.
        names = sorted(committables)
        if not self.transactions.is_open:
            self._open_again()
        if self.last is None or self.last < epoch:
            self._write(names, epoch)
        self.store.put(_KNOWN, json.dumps([epoch.generation, epoch.epoch]).encode(), durable=False)
        self.store.delete(names)

    def _open_again(self) -> None:
        """Connect again. The marker says whether the topic has the epoch."""
        try:
            marker = self.transactions.open()
        except Fenced:
            raise SystemUnavailable(f"{self.connection.owner}: its transaction was ended") from None
        except HangingTransaction as hanging:
            marker = hanging.marker
            # The next transaction that commits also ends the one that was left open. That is
            # right if all of ours were committed, and would duplicate rows if one was not.
            if self.outcome_unknown:
                self.transactions.close()
                raise self._hanging() from None
            self._require_owner(marker)
            return
        self._require_owner(marker)
        self.outcome_unknown = False
        if marker is not None:
            self.last = marker.epoch

    def _require_owner(self, marker: Marker | None) -> None:
        if marker is not None and marker.owner != self.owner:
            self.transactions.close()
            raise self._written_by_another()

    def _write(self, names: Sequence[str], epoch: EpochId) -> None:
        tables = (read_table(self.store, name) for name in names)
        self.outcome_unknown = True
        try:
            self.transactions.write(spooled(tables), Marker(epoch, self.owner))
        except Fenced:
            # By a broker that gave up waiting, or by another process: the marker shows which.
            raise SystemUnavailable(
                f"{self.connection.owner}: its transaction was ended by the broker",
                "if that happens again, raise transaction_timeout.",
            ) from None
        self.outcome_unknown = False
        self.last = epoch


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def _json(columns: SqlColumns, nulls: bool = False) -> str:
    if not columns:
        return "'{}'"
    from tidegate.sql.quoting import quoted

    fields = ", ".join(f"{sql} AS {quoted(name)}" for sql, name in columns)
    return f"to_json(struct({fields}), {json_options(nulls)})"
