"""The generator source: NEXMark events or a simple series, deterministic by event number.

Tasks return only the event numbers of an epoch, in chunks of a few thousand. Spark enumerates them
and computes the columns in generated code. The source can therefore resume and knows its end, and
no row is created in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tidegate.columns import NOW
from tidegate.connectors.base import FrameBuilder, InputRange, Offset, ScanRequest, SourceContext
from tidegate.connectors.generator.nexmark import (
    TABLES,
    CycleSlice,
    EventFields,
    GeneratedTable,
    hash_sql,
    pick_sql,
    unit_sql,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# Generated code buffers all rows of a chunk before it emits the first one. This many fit into the
# CPU cache.
CHUNK_EVENTS = 4096

_SERIES_COLUMNS = (("n", "BIGINT"), ("key", "BIGINT"), ("value", "DOUBLE"), ("ts", "TIMESTAMP"))


def columns(options: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the names and Spark types of the columns that these options generate."""
    return GeneratorSpec.from_options(options).table.columns


@dataclass(frozen=True)
class ChunkReader:
    """Reads splits [first, stop) of event numbers as chunks."""

    @property
    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([("first", pa.int64()), ("stop", pa.int64())])

    def read(self, split: list[int]) -> Iterator[tuple[pa.RecordBatch, int]]:
        import pyarrow as pa

        first, stop = split
        starts = range(first, stop, CHUNK_EVENTS)
        stops = [min(start + CHUNK_EVENTS, stop) for start in starts]
        # `InputRange.rows` has counted the rows already.
        yield pa.record_batch([pa.array(list(starts)), pa.array(stops)], schema=self.schema), 0


class GeneratorSource:
    """Generates events by number. The offset is the number of the next event.

    An epoch contains `rows_per_epoch` events of the whole sequence, independently of the table, so
    that streams over different tables advance at the same rate.
    """

    def __init__(self, context: SourceContext) -> None:
        self.options = context.source.options
        self.spec = GeneratorSpec.from_options(self.options)
        self.events_per_epoch = int(context.settings["rows_per_epoch"])

    def plan_range(self, since: Offset | None, tasks: int) -> InputRange | None:
        first = int(since["event"]) if since is not None else 0
        stop = first + self.events_per_epoch
        if self.spec.rows is not None:
            stop = min(stop, self.spec.rows)
        # The source may have been declared again with fewer rows.
        if stop <= first:
            return None
        bounds = [first + (stop - first) * task // tasks for task in range(tasks + 1)]
        splits = [[[begin, end]] if end > begin else [] for begin, end in pairwise(bounds)]
        rows = rows_between(self.options, {"event": first}, {"event": stop})
        more = self.spec.rows is None or stop < self.spec.rows
        progress = None if self.spec.rows is None else (stop - first, self.spec.rows - stop)
        return InputRange({"event": stop}, splits, rows, more, progress=progress)

    def on_commit(self, offset: Offset) -> None:
        """Do nothing: events can be generated again."""

    def create_reader(self, request: ScanRequest) -> None:
        """Return None: Spark generates the rows."""

    def frame(self, spark: SparkSession, request: ScanRequest, builder: FrameBuilder) -> DataFrame:
        frame = generate_rows(builder.read_frame(ChunkReader()), self.spec, (NOW,))
        return frame.select(*[name for name, _ in request.columns], NOW)

    def spark_read_frame(
        self, spark: SparkSession, request: ScanRequest, input_range: InputRange
    ) -> DataFrame:
        raise AssertionError("tasks read all events")


def open_source(context: SourceContext) -> GeneratorSource:
    return GeneratorSource(context)


def rows_between(
    options: Mapping[str, Any], start: Mapping[str, int] | None, end: Mapping[str, int]
) -> int:
    """Return the number of rows between two offsets, without generating them."""
    cycle_slice = GeneratorSpec.from_options(options).table.cycle_slice
    return cycle_slice.rank(end["event"]) - cycle_slice.rank(start["event"] if start else 0)


@dataclass(frozen=True)
class GeneratorSpec:
    """The parsed options of a generator source."""

    table: GeneratedTable
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
    def from_options(cls, options: Mapping[str, Any]) -> GeneratorSpec:
        return cls(
            table=_table(options),
            rows=options.get("rows"),
            seed=options.get("seed", 0),
            start_us=_microseconds(options.get("start", "2015-07-15 00:00:00")),
            events_per_second=options.get("events_per_second", 10_000),
            out_of_order_ms=options.get("out_of_order_ms", 0),
        )

    def time_us(self, event: str) -> str:
        """Return the expression of the event time, in microseconds, of an event number."""
        in_order = f"{self.start_us}L + {event} * 1000000 div {self.events_per_second}"
        if self.out_of_order_ms == 0:
            return in_order
        late_by = pick_sql(
            hash_sql(event, self.seed, "out of order"), self.out_of_order_ms * 1000 + 1
        )
        return f"{in_order} - {late_by}"


def _table(options: Mapping[str, Any]) -> GeneratedTable:
    kind = options.get("kind", "nexmark")
    if kind == "series":
        return _series(options.get("keys", 10))
    if kind != "nexmark":
        raise ValueError(f"kind must be nexmark or series, got {kind!r}")
    name = options.get("table", "bid")
    if name not in TABLES:
        raise ValueError(f"table must be one of {', '.join(TABLES)}, got {name!r}")
    return TABLES[name]


def _series(keys: int) -> GeneratedTable:
    if keys < 1:
        raise ValueError(f"keys must be at least 1, got {keys}")

    def expressions(fields: EventFields) -> Mapping[str, str]:
        return {
            "n": fields.event,
            "key": pick_sql(fields.hash("key"), keys),
            "value": unit_sql(fields.hash("value")),
            "ts": f"timestamp_micros({fields.time_us})",
        }

    return GeneratedTable(CycleSlice(cycle=1, first=0, width=1), _SERIES_COLUMNS, expressions)


def _microseconds(timestamp: str) -> int:
    """Parse an ISO timestamp, in UTC unless it has a zone, to microseconds since 1970."""
    try:
        start = datetime.fromisoformat(timestamp)
    except ValueError:
        raise ValueError(
            f"the option start: {timestamp!r} is not a timestamp such as '2015-07-15 00:00:00'"
        ) from None
    if start.tzinfo is None:
        start = start.replace(tzinfo=UTC)
    return (start - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def generate_rows(chunks: DataFrame, spec: GeneratorSpec, extra: tuple[str, ...] = ()) -> DataFrame:
    """Compute the rows of the event ranges [first, stop), and keep the columns `extra`."""
    cycle_slice = spec.table.cycle_slice
    ranks = chunks.selectExpr(
        f"{cycle_slice.rank_sql('first')} AS _first",
        f"{cycle_slice.rank_sql('stop')} AS _stop",
        *extra,
    ).where("_first < _stop")  # sequence() would count backwards over an empty range
    # For plain explode() Spark infers a filter on the array and would build every array twice.
    every = "explode_outer(sequence(_first, _stop - 1, 1L)) AS _rank"
    rows = ranks.selectExpr(every, *extra).selectExpr(
        "_rank",
        f"{cycle_slice.cycle_sql('_rank')} AS _cycle",
        f"{cycle_slice.event_sql('_rank')} AS _event",
        *extra,
    )
    fields = EventFields(
        rank="_rank",
        cycle="_cycle",
        event="_event",
        seed=spec.seed,
        time_us=spec.time_us("_event"),
        events_per_second=spec.events_per_second,
    )
    expressions = spec.table.expressions(fields)
    columns = [f"{expressions[name]} AS {name}" for name, _ in spec.table.columns]
    return rows.selectExpr(*columns, *extra)
