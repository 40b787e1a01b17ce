"""The Kafka sink: tasks spool records, and `publish` produces them in one transaction."""

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
    RowEncoder,
    SinkContext,
    SqlColumns,
    StreamSchema,
    sink_ahead_error,
    sweep_staged,
)
from tidegate.connectors.files.sink import json_options
from tidegate.connectors.kafka.avro import (
    DELETED,
    KEY,
    AvroEncoder,
    AvroWriterFactory,
    SchemaRegistryClient,
    avro_schema,
    require_avro,
)
from tidegate.connectors.kafka.client import Topics
from tidegate.connectors.kafka.source import connection_of
from tidegate.connectors.kafka.transactions import (
    HangingTransaction,
    ProducerFenced,
    TopicMarker,
    Transactions,
    spooled_records,
)
from tidegate.connectors.memory.connector import read_table
from tidegate.errors import RunError, SystemUnavailable, TidegateError, did_you_mean, list_names
from tidegate.storage import NotFound, open_store
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.connectors.memory.rows import ArrowWriterFactory

_VALUE = "_tg_value_out"
# The last published epoch. It is needed when the commit marker is missing or cannot be read.
_PUBLISHED_FILE = "committed.json"


class KafkaSink:
    """Appends the records of each epoch to a topic. Implements `SinkConnector`."""

    def __init__(self, context: SinkContext) -> None:
        self.context = context
        self.stream_schema = context.schema or StreamSchema(())
        self.options = context.sink.options
        self.topic = str(self.options["topic"])
        self.instance_id = uuid.uuid4().hex
        self.name = f"tidegate-{context.stream_id}-{context.sink.name.lower()}"
        self.connection = connection_of(f"the sink {context.sink.name}", self.options)
        self.store = open_store(context.data_uri).child(f"spool-{context.sink.name.lower()}")
        self.transactions = Transactions(
            self.connection, self.name, self.topic, self.options["transaction_timeout"]
        )
        # The last epoch that the topic contains.
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
        """Return the key columns; None if records have no key."""
        option: tuple[str, ...] | None = self.options["key"]
        stream_key = self.stream_schema.key
        if self.stream_schema.kind is not ChangelogKind.UPSERT or stream_key is None:
            return option
        if option and {name.lower() for name in option} != {name.lower() for name in stream_key}:
            raise RunError(
                "TG-210",
                f"the stream {self.context.sink.stream} replaces rows by "
                f"{list_names(stream_key, 'nothing')}, but the sink {self.context.sink.name} has "
                f"the key {list_names(option)}",
                hint="leave out the option key.",
            )
        if self.options["key_format"] == "text" and len(stream_key) != 1:
            raise RunError(
                "TG-210",
                "a text key has one column, but the stream "
                f"{self.context.sink.stream} replaces rows by {list_names(stream_key, 'nothing')}",
                hint="use key_format = 'json'.",
            )
        return option or stream_key

    # Opening

    def recover(self, committed: CommittedState) -> None:
        self._require_topic()
        if self.is_avro:
            self.encoder = self._encoder()
        try:
            marker = self.transactions.open()
        except ProducerFenced:
            raise self._taken_over() from None
        except HangingTransaction:
            marker, unknown = None, self._hanging_transaction()
        else:
            unknown = self._lost_marker(committed)
        self.last = marker.epoch if marker else self._published_epoch(committed, unknown)
        if self.last is not None and self.last.epoch >= 0 and not committed.contains(self.last):
            raise self._ahead(self.last, committed)
        # Write the marker with the new instance id, which stops a zombie driver.
        self._write((), self.last or EpochId(0, -1))
        epoch = committed.committables_epoch
        if epoch is not None and (self.last is None or self.last < epoch):
            self.publish(epoch, committed.committables)
        sweep_staged(self.store, "", committed)

    def _require_topic(self) -> None:
        _, partition_counts = Topics(self.connection).partitions()
        if self.topic not in partition_counts:
            topics = [name for name in partition_counts if not name.startswith("__")]
            raise RunError(
                "TG-522",
                f"the sink {self.context.sink.name} writes to the topic {self.topic}, which does "
                f"not exist on {self.options['brokers']}",
                hint=f"create it first; {did_you_mean(self.topic, topics, 'topics')}",
            )

    def _encoder(self) -> AvroEncoder:
        """Create the encoder. The schema of the columns is registered if there is a registry."""
        import pyarrow as pa

        from tidegate.physical.typed import arrow_type

        columns = [(name, arrow_type(sql_type)) for name, sql_type in self.context.columns]
        if self.stream_schema.kind is ChangelogKind.UPSERT:
            columns = [column for column in columns if column[0] != OP]
        schema = json.dumps(avro_schema(self.topic, pa.schema(columns)))
        registry = SchemaRegistryClient.from_options(self.connection.label, self.options)
        schema_id = None if registry is None else registry.register(f"{self.topic}-value", schema)
        return AvroEncoder(schema, schema_id)

    def _published_epoch(self, committed: CommittedState, unknown: TidegateError) -> EpochId | None:
        """Return the last published epoch if the marker is missing or cannot be read.

        The data directory also records it. If that record is not the last staged epoch, it is
        unknown whether the topic contains this epoch, and publishing it again could duplicate its
        rows: raise `unknown`.
        """
        staged = committed.staged_epoch
        if staged is None or staged.generation < committed.keep_before_generation:
            return None
        try:
            published = json.loads(self.store.get(_PUBLISHED_FILE))
        except NotFound:
            published = None
        if published == [staged.generation, staged.epoch]:
            return staged
        self.transactions.close()
        raise unknown

    def _lost_marker(self, committed: CommittedState) -> TidegateError:
        """Return the error for a deleted marker.

        By default, brokers delete the marker of a sink that has not written for a week.
        """
        epoch = committed.staged_epoch.epoch if committed.staged_epoch is not None else -1
        return RunError(
            "TG-526",
            f"the commit marker of the sink {self.context.sink.name} is missing (the offset of the "
            f"group {self.name} on {self.options['brokers']}): it is unknown whether the topic "
            f"{self.topic} contains epoch {epoch}",
            hint="if the topic may contain it: RESTORE FROM CHECKPOINT "
            f"{epoch} WITH (sinks = 'keep');",
        )

    def _hanging_transaction(self) -> TidegateError:
        return SystemUnavailable(
            f"{self.connection.label} cannot read its commit marker: the broker has left a "
            f"transaction of {self.name} on the topic {self.topic} open",
            "Kafka 4.3.0 and 4.3.1 do this after a crash (KAFKA-20734). End it with "
            "kafka-transactions.sh (find-hanging, then abort), also on __consumer_offsets.",
        )

    def _ahead(self, marker: EpochId, committed: CommittedState) -> TidegateError:
        return sink_ahead_error(
            f"the topic {self.topic} contains epoch {marker.epoch} of generation "
            f"{marker.generation} of the sink {self.context.sink.name}, which this pipeline has "
            "not committed",
            "restore the data directory that belongs to this topic, or write to another topic",
            committed.last,
        )

    def _taken_over(self) -> TidegateError:
        self.failure = RunError(
            "TG-527",
            f"another process has taken over the sink {self.context.sink.name} to the topic "
            f"{self.topic}; this process stopped, and no rows were duplicated",
            hint="run only one of them.",
        )
        return self.failure

    # Epochs

    def columns(self, stream_columns: SqlColumns) -> SqlColumns | None:
        """Return the key and the value; for Avro, the columns from which tasks encode the value.

        Rows that delete a key have no value.
        """
        op = next((sql for sql, name in stream_columns if name == OP), None)
        is_upsert = self.stream_schema.kind is ChangelogKind.UPSERT
        fields = [(sql, name) for sql, name in stream_columns if not (is_upsert and name == OP)]
        may_delete = is_upsert and op is not None
        key = (self._key_sql(stream_columns), KEY)
        if self.is_avro:
            return [key, (f"{op} IN ('-U', '-D')" if may_delete else "false", DELETED), *fields]
        value = _json(fields)
        if may_delete:
            value = f"CASE WHEN {op} NOT IN ('-U', '-D') THEN {value} END"
        return [key, (value, _VALUE)]

    def row_encoder(self, schema: pa.Schema) -> RowEncoder | None:
        import pyarrow as pa

        from tidegate.connectors.formats.row_encoder import (
            JsonText,
            PlainText,
            TextEncoder,
            is_encodable,
        )

        is_upsert = self.stream_schema.kind is ChangelogKind.UPSERT
        may_delete = is_upsert and OP in schema.names
        if self.is_avro or may_delete or not all(is_encodable(f.type) for f in schema):
            return None
        value = JsonText(tuple(schema.names))
        if self.key is None:
            return TextEncoder(((KEY, PlainText(None)), (_VALUE, value)))
        columns = {name.lower(): name for name in schema.names}
        keys = [columns[name.lower()] for name in self.key if name.lower() in columns]
        if self.options["key_format"] == "text" and len(keys) == 1:
            kind = schema.field(keys[0]).type
            if not (pa.types.is_signed_integer(kind) or kind == pa.string()):
                return None
            return TextEncoder(((KEY, PlainText(keys[0])), (_VALUE, value)))
        return TextEncoder(((KEY, JsonText(tuple(keys), nulls=True)), (_VALUE, value)))

    def _key_sql(self, stream_columns: SqlColumns) -> str:
        if self.key is None:
            return "CAST(NULL AS STRING)"
        columns = {name.lower(): (sql, name) for sql, name in stream_columns}
        key_columns = [columns[name.lower()] for name in self.key if name.lower() in columns]
        if self.options["key_format"] == "text" and len(key_columns) == 1:
            return f"CAST({key_columns[0][0]} AS STRING)"
        return _json(key_columns, nulls=True)

    def writer_factory(self, schema: pa.Schema) -> ArrowWriterFactory | AvroWriterFactory:
        from tidegate.connectors.memory.rows import ArrowWriterFactory

        spool = ArrowWriterFactory(self.store.uri)
        if not self.is_avro:
            return spool
        assert self.encoder is not None, "recover is called first"
        return AvroWriterFactory(spool, self.encoder)

    def publish(self, epoch: EpochId, committables: Sequence[Committable]) -> None:
        if self.failure is not None:
            raise self.failure
        if not committables or (self.last is not None and self.last >= epoch):
            return
        # Names begin with epoch and task, so records are written in the order they were read in.
        names = sorted(committables)
        if not self.transactions.is_open:
            self._reopen()
        if self.last is None or self.last < epoch:
            self._write(names, epoch)
        published = json.dumps([epoch.generation, epoch.epoch]).encode()
        self.store.put(_PUBLISHED_FILE, published, durable=False)
        self.store.delete(names)

    def _reopen(self) -> None:
        """Connect again after an error, and read from the marker which epoch the topic contains."""
        try:
            marker = self.transactions.open()
        except ProducerFenced:
            raise SystemUnavailable(
                f"{self.connection.label}: the broker ended its transaction"
            ) from None
        except HangingTransaction as hanging:
            # The next transaction that commits also commits the one that was left open. That is
            # correct if all transactions of this sink were committed, and would duplicate rows if
            # one was not.
            if self.outcome_unknown:
                self.transactions.close()
                raise self._hanging_transaction() from None
            self._require_own_marker(hanging.marker)
            return
        self._require_own_marker(marker)
        self.outcome_unknown = False
        if marker is not None:
            self.last = marker.epoch

    def _require_own_marker(self, marker: TopicMarker | None) -> None:
        if marker is not None and marker.instance_id != self.instance_id:
            self.transactions.close()
            raise self._taken_over()

    def _write(self, names: Sequence[str], epoch: EpochId) -> None:
        tables = (read_table(self.store, name) for name in names)
        self.outcome_unknown = True
        try:
            self.transactions.write(spooled_records(tables), TopicMarker(epoch, self.instance_id))
        except ProducerFenced:
            # Either the transaction timed out, or another process took over. The marker shows
            # which when `publish` is retried.
            raise SystemUnavailable(
                f"{self.connection.label}: the broker ended its transaction",
                "if this happens again, raise transaction_timeout.",
            ) from None
        self.outcome_unknown = False
        self.last = epoch


def _json(columns: SqlColumns, nulls: bool = False) -> str:
    if not columns:
        return "'{}'"
    from tidegate.sql.quoting import quote_identifier

    fields = ", ".join(f"{sql} AS {quote_identifier(name)}" for sql, name in columns)
    return f"to_json(struct({fields}), {json_options(nulls)})"
