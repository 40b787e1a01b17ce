"""The job graph of a pipeline: what the tasks of an epoch do, without Spark.

A graph is a linear chain of levels. The programs of level 0 read splits; those of level d run the
operators of depth d of all streams, one after the other in the same tasks. Between two levels there
is one shuffle. Its rows are blobs with a *target*: the operator that receives them, a stage in
Spark SQL, or the driver, which receives task reports. A level relays rows whose target comes later.

The branches of a program are instructions: `ScanColumns`, `Select` or `Rename`, `Evaluate`, and at
the end `ShuffleWrite`, `SinkWrite` or `Expose`. A stage that needs Spark SQL leaves the chain: its
operators expose their rows, and its result is written to a later shuffle or to sinks.

Graphs are built by `graph_builder` once per set of streams; between epochs only the epoch spec
changes. Python workers import this module: it must not load the parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.columns import CONTROL, EVENT_TIME, NOW, ORIGIN, SELECTED
from tidegate.operators.aggregate.groups import PaneGrid
from tidegate.operators.kernels.ordering import ARRIVAL_FIELDS
from tidegate.operators.operator import Operator
from tidegate.operators.runner import OperatorRunner
from tidegate.operators.vectorized import Vector, VectorStage

if TYPE_CHECKING:
    from tidegate.catalog.objects import Source
    from tidegate.connectors.base import (
        InputRange,
        RowEncoder,
        ScanRequest,
        SinkWriterFactory,
        SplitReader,
    )
    from tidegate.plan import nodes as n

# A stream and a source, in lower case.
InputKey = tuple[str, str]
# The streams that counters are attributed to.
StreamNames = tuple[str, ...]

# The target of task reports in a shuffle.
REPORTS = -1
# The ids of operators in a graph, which are the origins of their watermark updates, start here.
# Sources have smaller origins: their numbers in the plan of a stream.
FIRST_NODE = 1_000_000
# The targets of rows that stages in Spark SQL read start here.
FIRST_EXPOSED = 2_000_000


# ---- Instructions at the beginning of a branch


@dataclass(frozen=True)
class ScanColumns:
    """Compute the columns that a stream reads from the records of a source."""

    # The origin of the watermark updates.
    origin: int
    # The streams that the records are counted for.
    streams: StreamNames
    columns: tuple[tuple[str, Vector], ...]
    # True if each partition of the source has its own watermark.
    partitioned: bool = False


@dataclass(frozen=True)
class Select:
    """Take the columns of a scan from records that Spark has decoded."""

    # The origin of the watermark updates; decoded records have the origin 0.
    origin: int
    names: tuple[str, ...]
    # The positions of the columns among those of the decoded records.
    indexes: tuple[int, ...]


@dataclass(frozen=True)
class Rename:
    """Name the columns of an operator as the reader's plan names them."""

    names: tuple[str, ...]


# ---- Stateless instructions


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a vectorized stage. Its hidden columns are passed through."""

    stage: VectorStage
    hidden: tuple[str, ...]


# ---- Instructions at the end of a branch


@dataclass(frozen=True)
class ShuffleWrite:
    """Pre-aggregate rows for a port of an operator and partition them by key group.

    `columns` pairs the operator's names with those of the stage, which holds equal arguments once.
    `delays` are the microseconds that the watermark of each origin stays behind; `sources` are the
    origins that end with the input. Operators identify origins by their position in the port
    (`local`), which does not change with the rest of the query. An origin has several positions if
    several parts of the query read it.
    """

    target: int
    # The streams that malformed records are attributed to.
    streams: StreamNames
    operator: Operator
    port: int
    columns: tuple[tuple[str, str], ...]
    delays: tuple[tuple[int, int], ...]
    sources: tuple[int, ...]
    local: tuple[tuple[int, int], ...]
    key_groups: int
    grid: PaneGrid | None = None
    hashed: tuple[str, ...] | None = None
    # The name of the operator in reports, if Spark has pre-aggregated the rows.
    pre_aggregated: str | None = None
    # The target of dead letters, if a stage in Spark SQL reads them.
    dead_letters: int | None = None

    @cached_property
    def positions(self) -> dict[int, tuple[int, ...]]:
        """Return all positions of each origin: each of them gets the origin's watermark updates."""
        origin_ids: dict[int, tuple[int, ...]] = {}
        for origin, origin_id in self.local:
            origin_ids[origin] = (*origin_ids.get(origin, ()), origin_id)
        return origin_ids


@dataclass(frozen=True)
class SinkTarget:
    """A sink for tasks: the columns of the rows that it writes, and their names in the sink."""

    name: str
    factory: SinkWriterFactory = field(compare=False)
    columns: tuple[str, ...]
    names: tuple[str, ...]
    # The column that selects its rows, if they are not the rows of the stream.
    selected_by: str | None = None
    # Computes the columns that are written from those with these names.
    encoder: RowEncoder | None = field(default=None, compare=False)


@dataclass(frozen=True)
class SinkWrite:
    """Stage rows for sinks. `counts`: the rows are counted as output of the stream."""

    stream: str
    sinks: tuple[SinkTarget, ...]
    # True if the branch reads a source, so that only this task knows the event times.
    reads_source: bool = False
    counts: bool = True


@dataclass(frozen=True)
class Expose:
    """Send rows to a stage in Spark SQL."""

    target: int


End = ShuffleWrite | SinkWrite | Expose
Instruction = ScanColumns | Select | Rename | Evaluate | End
# The last instruction is an `End`.
Branch = tuple[Instruction, ...]


# ---- Programs


@dataclass(frozen=True)
class Read:
    """Read the splits of an input range, and detect malformed records."""

    range_key: InputKey
    reader: SplitReader = field(compare=False)
    # Columns that must not be NULL; the event time in microseconds, and its limit in the future.
    required: tuple[Vector, ...]
    time: Vector | None
    max_future_us: int | None

    @property
    def split(self) -> str:
        """The name of the range in epoch specs."""
        return "/".join(self.range_key)


@dataclass(frozen=True)
class Step:
    """Run an operator for its key groups. `keys` are its names in manifests, one per reader."""

    id: int
    stream: str
    keys: tuple[str, ...]
    runner: OperatorRunner
    # The folder of the state, as a URI.
    state: str
    names: tuple[str, ...]
    with_arrival: bool
    with_now: bool
    # The streams that read its late rows.
    late_readers: StreamNames = ()

    @cached_property
    def output(self) -> pa.Schema:
        """Return the schema of the rows, with the hidden columns."""
        fields = zip(self.names, self.runner.operator.output, strict=True)
        columns = [pa.field(name, field.type) for name, field in fields]
        return pa.schema([*columns, *hidden_fields(self.with_arrival, self.with_now)])


def hidden_fields(with_arrival: bool, with_now: bool) -> list[pa.Field]:
    """Return the hidden columns of the rows of an operator."""
    fields = [
        pa.field(ORIGIN, pa.int32()),
        pa.field(EVENT_TIME, pa.int64()),
        pa.field(SELECTED, pa.bool_()),
        pa.field(CONTROL, pa.binary()),
    ]
    if with_arrival:
        fields += ARRIVAL_FIELDS
    return [*fields, pa.field(NOW, pa.int64())] if with_now else fields


@dataclass(frozen=True)
class TaskProgram:
    """Rows from a source or an operator, and what happens to them."""

    head: Read | Step
    branches: tuple[Branch, ...]
    # What happens to the late rows of an operator.
    late: tuple[Branch, ...] = ()


@dataclass(frozen=True)
class Level:
    """Programs that run in the same tasks, and the targets whose rows are relayed."""

    programs: tuple[TaskProgram, ...]
    relayed: frozenset[int] = frozenset()
    # Programs that read sources for this level, in large epochs: reading a range again costs less
    # than relaying its rows.
    reads: tuple[TaskProgram, ...] = ()


# ---- Stages in Spark SQL


@dataclass(frozen=True)
class ExposedRows:
    """The rows of an operator, or the side rows of a stream, that a stage in Spark SQL reads."""

    target: int
    # The schema of the rows as the reader names them, without hidden columns.
    schema: pa.Schema
    with_arrival: bool = False
    with_now: bool = False


@dataclass(frozen=True, eq=False)
class SqlScan:
    """How a stage in Spark SQL reads a source."""

    source: Source
    request: ScanRequest
    # The name of the range in epoch specs.
    range_key: InputKey
    # The range, if Spark's own reader reads it; the graph is then valid for one epoch.
    input_range: InputRange | None = None


@dataclass(frozen=True, eq=False)
class SqlStage:
    """A stage that Spark SQL evaluates, between sources, exposed rows and an `End`.

    `plan` is the plan with the SQL: the port of an operator, the last stage of a stream, or a query
    that diagnoses an error. `inputs` are the rows that it reads from the chain, by operator number
    or by the name of a stream with late rows.
    """

    stream: str
    # The streams that records are attributed to.
    streams: StreamNames
    sql: str
    leaves: tuple[Any, ...]
    inputs: Mapping[int | str, ExposedRows]
    # The sources that it reads, by the index of the scan.
    scans: Mapping[int, SqlScan]
    # The levels before which it reads exposed rows and writes its result; `feeds` is None if the
    # result goes to sinks.
    reads: int
    feeds: int | None
    end: ShuffleWrite | DecodedRows | SqlSinks | None
    # True if it calls Python functions.
    calls_udf: bool = False
    # The last node of a stream in which old rows become deletes if their new rows are filtered out.
    deletes: n.Emit | None = None


@dataclass(frozen=True, eq=False)
class DecodedRows:
    """Branches over records of a source that Spark decodes once for all of them."""

    # The columns of the source that the branches read.
    columns: tuple[str, ...]
    branches: tuple[Branch, ...]
    with_arrival: bool
    with_now: bool
    partitioned: bool


@dataclass(frozen=True, eq=False)
class SqlSinks:
    """Sinks whose rows Spark SQL computes."""

    stream: str
    # The names of the sinks that take the rows of the stream, and dead letters of this stage.
    rows: tuple[str, ...]
    dead_letters: tuple[str, ...] = ()
    reads_source: bool = False
    counts: bool = True


@dataclass(frozen=True, eq=False)
class JobGraph:
    """All programs of a pipeline.

    Programs read the rows of their level's shuffle; `levels[0]` reads splits. The last level sends
    nothing but reports.
    """

    streams: StreamNames
    levels: tuple[Level, ...]
    sql: tuple[SqlStage, ...]
    key_groups: int
    tasks: int
    # True for large epochs, in which generated code is worth its compilation.
    large: bool = False

    @property
    def is_single_use(self) -> bool:
        """True if it contains the ranges of one epoch, which Spark's own readers read."""
        return any(s.input_range is not None for stage in self.sql for s in stage.scans.values())

    @property
    def is_empty(self) -> bool:
        """True if nothing has to be done."""
        return not self.sql and not any(level.programs for level in self.levels)

    @property
    def description(self) -> str:
        """Describe the levels in one line each, for logs and tests."""
        return "\n".join(
            f"level {number}: {', '.join(_describe(p) for p in level.programs) or 'relay'}"
            for number, level in enumerate(self.levels)
        )


def _describe(program: TaskProgram) -> str:
    head = program.head
    return f"read {head.split}" if isinstance(head, Read) else f"step {head.runner.operator.name}"
