"""The generator source: NEXMark events or a simple series, deterministic by event number.

A Python data source only says *which* event numbers an epoch holds, in chunks of a few thousand;
Spark enumerates them and computes the columns in generated code. So the source can resume and knows
its end, which Spark's `rate` sources do not, and yet no row passes through Python.
"""

# ruff: noqa: N802 (the methods of a data source have the names that Spark calls)

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tidegate.connectors.nexmark_events import (
    TABLES,
    Fields,
    Share,
    Table,
    hash_sql,
    pick_sql,
    unit_sql,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource, InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit

FORMAT = "tidegate_generator"
# Generated code buffers all rows of a chunk before it hands on the first one: keep them in cache.
CHUNK_EVENTS = 4096

_SERIES_COLUMNS = (("n", "BIGINT"), ("key", "BIGINT"), ("value", "DOUBLE"), ("ts", "TIMESTAMP"))


def columns(options: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Column names and Spark SQL types of what these options generate."""
    return _Spec.of(options).table.columns


def read(spark: SparkSession, options: Mapping[str, Any], rows_per_epoch: int) -> DataFrame:
    """A streaming DataFrame with exactly those columns.

    An epoch holds `rows_per_epoch` events of the sequence, whatever table is read, so that tables
    that are read side by side stay in step.
    """
    if rows_per_epoch < 1:
        raise ValueError(f"rows_per_epoch must be at least 1, got {rows_per_epoch}")
    spec = _Spec.of(options)
    # Registering again replaces the registration; queries that already run keep their own copy.
    spark.dataSource.register(_data_source())
    reader = spark.readStream.format(FORMAT)
    reader = reader.option("events_per_epoch", rows_per_epoch)
    reader = reader.option("tasks", spark.sparkContext.defaultParallelism)
    if spec.rows is not None:
        reader = reader.option("events", spec.rows)
    return _generate(reader.load(), spec)


def read_batch(spark: SparkSession, options: Mapping[str, Any]) -> DataFrame:
    """The same rows as a batch DataFrame."""
    spec = _Spec.of(options)
    if spec.rows is None:
        raise ValueError("an unbounded generator is no batch: give it the option rows")
    starts = spark.range(0, spec.rows, CHUNK_EVENTS, spark.sparkContext.defaultParallelism)
    chunks = starts.selectExpr("id AS first", f"least(id + {CHUNK_EVENTS}, {spec.rows}) AS stop")
    return _generate(chunks, spec)


def rows_between(
    options: Mapping[str, Any], start: Mapping[str, int] | None, end: Mapping[str, int]
) -> int:
    """How many rows an epoch between two offsets holds.

    Spark's own count (`numInputRows`) sees chunks of events, not rows.
    """
    share = _Spec.of(options).table.share
    return share.rank(end["event"]) - share.rank(start["event"] if start else 0)


@dataclass(frozen=True)
class _Spec:
    """The options of one generator source."""

    table: Table
    rows: int | None
    seed: int
    start_us: int
    events_per_second: int
    out_of_order_ms: int

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 0:
            raise ValueError(f"rows must not be negative, got {self.rows}")
        if self.events_per_second < 1:
            raise ValueError(f"events_per_second must be at least 1, got {self.events_per_second}")
        if self.out_of_order_ms < 0:
            raise ValueError(f"out_of_order_ms must not be negative, got {self.out_of_order_ms}")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> _Spec:
        return cls(
            table=_table(options),
            rows=options.get("rows"),
            seed=options.get("seed", 0),
            start_us=_microseconds(options.get("start", "2015-07-15 00:00:00")),
            events_per_second=options.get("events_per_second", 10_000),
            out_of_order_ms=options.get("out_of_order_ms", 0),
        )

    def time_us(self, event: str) -> str:
        """The event time of an event number, as an expression."""
        in_order = f"{self.start_us}L + {event} * 1000000 div {self.events_per_second}"
        if self.out_of_order_ms == 0:
            return in_order
        late_by = pick_sql(
            hash_sql(event, self.seed, "out of order"), self.out_of_order_ms * 1000 + 1
        )
        return f"{in_order} - {late_by}"


def _table(options: Mapping[str, Any]) -> Table:
    kind = options.get("kind", "nexmark")
    if kind == "series":
        return _series(options.get("keys", 10))
    if kind != "nexmark":
        raise ValueError(f"kind must be nexmark or series, got {kind!r}")
    name = options.get("table", "bid")
    if name not in TABLES:
        raise ValueError(f"table must be one of {', '.join(TABLES)}, got {name!r}")
    return TABLES[name]


def _series(keys: int) -> Table:
    if keys < 1:
        raise ValueError(f"keys must be at least 1, got {keys}")

    def expressions(fields: Fields) -> Mapping[str, str]:
        return {
            "n": fields.event,
            "key": pick_sql(fields.hash("key"), keys),
            "value": unit_sql(fields.hash("value")),
            "ts": f"timestamp_micros({fields.time_us})",
        }

    return Table(Share(cycle=1, first=0, width=1), _SERIES_COLUMNS, expressions)


def _microseconds(timestamp: str) -> int:
    """Microseconds since 1970 of an ISO timestamp, in UTC unless it names its zone."""
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        raise ValueError(
            f"the option start: {timestamp!r} is not a timestamp such as '2015-07-15 00:00:00'"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _generate(chunks: DataFrame, spec: _Spec) -> DataFrame:
    """The rows of the event ranges [first, stop)."""
    share = spec.table.share
    ranks = chunks.selectExpr(
        f"{share.rank_sql('first')} AS _first", f"{share.rank_sql('stop')} AS _stop"
    ).where("_first < _stop")  # a sequence() with nothing in it would run backwards
    # For plain explode() Spark infers a filter on the array, and would build every array twice.
    rows = ranks.selectExpr("explode_outer(sequence(_first, _stop - 1, 1L)) AS _rank").selectExpr(
        "_rank", f"{share.cycle_sql('_rank')} AS _cycle", f"{share.event_sql('_rank')} AS _event"
    )
    fields = Fields(
        rank="_rank",
        cycle="_cycle",
        event="_event",
        seed=spec.seed,
        time_us=spec.time_us("_event"),
        events_per_second=spec.events_per_second,
    )
    expressions = spec.table.expressions(fields)
    return rows.selectExpr(*(f"{expressions[name]} AS {name}" for name, _ in spec.table.columns))


def _data_source() -> type[DataSource]:
    """The data source of chunks of event numbers; an offset is the number of the next event.

    The classes are made here because their bases come from pyspark. Made here they are also pickled
    by value, so that Python workers need not import this package.
    """
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import (
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    class ChunkReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def __init__(self, options: Mapping[str, str]) -> None:
            self.events = int(options["events"]) if "events" in options else None
            self.events_per_epoch = int(options["events_per_epoch"])
            self.tasks = int(options["tasks"])

        def initialOffset(self) -> dict[str, int]:
            return {"event": 0}

        def getDefaultReadLimit(self) -> ReadLimit:
            return ReadMaxRows(self.events_per_epoch)

        def prepareForTriggerAvailableNow(self) -> None:
            self.end()

        def end(self) -> int:
            if self.events is None:
                raise ValueError("an unbounded generator has no end: give it the option rows")
            return self.events

        def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
            first = start["event"]
            stop = first + limit.max_rows if isinstance(limit, ReadMaxRows) else self.end()
            if self.events is not None:
                stop = min(stop, self.events)
            # Never back, even if the source has been declared again with fewer rows.
            return {"event": max(first, stop)}

        def reportLatestOffset(self) -> dict[str, int] | None:
            return None if self.events is None else {"event": self.events}

        def partitions(
            self, start: dict[str, int], end: dict[str, int]
        ) -> Sequence[InputPartition]:
            first, count = start["event"], end["event"] - start["event"]
            if count == 0:
                return []
            bounds = [first + count * task // self.tasks for task in range(self.tasks + 1)]
            return [InputPartition(chunk) for chunk in pairwise(bounds)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
            first, stop = partition.value
            for chunk in range(first, stop, CHUNK_EVENTS):
                yield chunk, min(chunk + CHUNK_EVENTS, stop)

    class ChunkSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> str:
            return "first BIGINT, stop BIGINT"

        def streamReader(self, schema: object) -> DataSourceStreamReader:
            return ChunkReader(self.options)

    return ChunkSource
