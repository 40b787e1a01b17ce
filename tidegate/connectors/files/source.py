"""Directories of files as a source: new ones by listing, each read once."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, OP, RECORD_FILE, RECORD_LINE
from tidegate.connectors.base import InputRange, Leaf, Offset, Read, SourceContext
from tidegate.connectors.files.listing import SeenFiles, new_files, read_in_part
from tidegate.connectors.formats.lines import TextReader, is_compressed
from tidegate.errors import RunError
from tidegate.operators.kernels.ordering import ARRIVAL_FIELDS
from tidegate.storage import StoredFile, RangedFile, open_store, uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.connectors.formats.lines import CsvLines, JsonLines, PlainLinesReader


# ---- Reads parquet files in tasks, where their columns are exactly the declared ones.
#
# Python workers import this module: it must not load the parser.

_BATCH_ROWS = 100_000


@dataclass(frozen=True)
class ParquetReader:
    """Reads shares [file, time, first group, last group] of the files below a root."""

    root: str
    columns: pa.Schema
    arrival: bool
    located: bool

    @property
    def schema(self) -> pa.Schema:
        fields = list(self.columns)
        if self.arrival:
            fields += ARRIVAL_FIELDS
        if self.located:
            fields += [pa.field(RECORD_FILE, pa.string()), pa.field(RECORD_LINE, pa.int64())]
        return pa.schema(fields)

    def read(self, split: list[Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
        name, modified_us, first, last = split
        assert isinstance(name, str) and isinstance(first, int) and isinstance(last, int)
        store = open_store(self.root)
        data = pa.BufferReader(store.map(name))
        file = pq.ParquetFile(data, coerce_int96_timestamp_unit="us")
        shown = f"{store.uri}/{name}"
        row = sum(file.metadata.row_group(group).num_rows for group in range(first))
        for batch in file.iter_batches(
            _BATCH_ROWS, list(range(first, last)), self.columns.names, use_threads=False
        ):
            count = batch.num_rows
            arrays = [batch.column(field.name).cast(field.type) for field in self.columns]
            if self.arrival:
                arrays.append(pa.repeat(pa.scalar(f"{modified_us:020d} {shown}"), count))
                arrays.append(pa.array(np.arange(row, row + count)))
            if self.located:
                arrays.append(pa.repeat(pa.scalar(shown), count))
                arrays.append(pa.array(np.arange(row + 1, row + count + 1)))
            row += count
            # Their footers told how many rows there are.
            yield pa.record_batch(arrays, schema=self.schema), 0


def fits(footer: Any, wanted: pa.Schema) -> bool:
    """Whether the columns of a file, by its footer, have exactly the types that were declared."""
    file = footer.schema.to_arrow_schema()
    old = _old_times(footer)
    return all(
        len(file.get_all_field_indices(field.name)) == 1
        and (_same(file.field(field.name).type, field.type) or _is_time(field, old))
        for field in wanted
    )


def _same(one: pa.DataType, other: pa.DataType) -> bool:
    plain = not pa.types.is_nested(other) and not pa.types.is_dictionary(one)
    return plain and one.equals(other)


def _is_time(field: pa.Field, old: set[str]) -> bool:
    return field.name in old and bool(field.type.equals(pa.timestamp("us", "UTC")))


def _old_times(footer: Any) -> set[str]:
    """Columns of times as Spark writes them, in 12 bytes, in the calendar of today.

    Times of others, or of a Spark that was told to, may be in an older calendar: Spark judges them.
    """
    told = footer.metadata or {}
    if b"org.apache.spark.version" not in told or b"org.apache.spark.legacyINT96" in told:
        return set()
    columns = [footer.schema.column(place) for place in range(len(footer.schema))]
    return {column.name for column in columns if column.physical_type == "INT96"}


# A part of a file that is worth a task of its own.
_PART_BYTES = 8 << 20
# From here on Spark's own reader of parquet is faster, though the frame is built for it.
_NATIVE_BYTES = 48 << 20
# As many streams that are not equally far are kept in mind.
_REMEMBERED = 8
# How long a file that has just come may take until it is whole.
_WRITING_SECONDS = 3.0


class FilesSource:
    """A directory that files are added to."""

    def __init__(self, context: SourceContext) -> None:
        self.context = context
        self.options = context.source.options
        self.store = open_store(uri(self.options["path"], context.source.origin.folder))
        self.seen_files = SeenFiles(open_store(context.offsets))
        self.limit = self.options["files_per_epoch"] or context.settings["files_per_epoch"]
        # Offsets of streams with the files that were read up to there, and the same for ranges
        # that were cut and may be decided.
        self._known: list[tuple[Offset, set[str]]] = []
        self._cuts: list[tuple[Offset, set[str]]] = []
        self._lock = threading.Lock()
        self._require_directory()

    def _require_directory(self) -> None:
        """An empty listing would say nothing about a typo."""
        path = os.path.join(self.context.source.origin.folder, self.options["path"])  # noqa: PTH118
        if self.store.local and not self.store.local_path("").is_dir():
            raise RunError(
                "TG-504",
                f"the source {self.context.source.name} reads the directory {path}, which does "
                "not exist",
                hint=f"mkdir -p {path}, or correct the option path.",
            )

    # Cutting

    def plan_range(self, since: Offset | None, tasks: int) -> InputRange | None:
        with self._lock:
            seen = self._seen(since)
            found = new_files(self.store.list(), seen, self.options["glob"])
            if not found:
                return None
            self._reject_merged(found, seen)
            chosen = found[: self.limit]
            chosen = chosen[: self.context.pace.fitting(item.size for item in chosen)]
            offset = self.seen_files.next(since, [item.name for item in chosen])
            self._cuts = [*self._cuts[1 - _REMEMBERED :], (offset, seen)]
        size = sum(item.size for item in chosen)
        more = len(found) > len(chosen)
        left = sum(item.size for item in found[len(chosen) :])
        if self.options["format"] == "parquet":
            input_range = self._parquet_cut(chosen, offset, size, more, tasks)
            return replace(input_range, progress=(size, left))
        splits = _spread(
            [part for item in chosen for part in _text_parts(item, tasks, self.whole)], tasks
        )
        return InputRange(offset, splits, size=size, more=more, progress=(size, left))

    def _reject_merged(self, found: list[StoredFile], seen: set[str]) -> None:
        merged = read_in_part(found, seen)
        if merged is not None:
            raise RunError(
                "TG-504",
                f"the source {self.context.source.name} has read files of {self.options['path']} "
                f"that a files sink has merged into {merged} since, with others perhaps that it "
                "has not read",
                hint="read the stream that is written there instead of the files, or leave out "
                "compact_after of the sink and give what reads the directory another name, so that "
                "it starts from the beginning.",
            )

    def _seen(self, since: Offset | None) -> set[str]:
        """The files that were read up to an offset; adding up all names is done once."""
        found = next((seen for at, seen in self._known if at == since), None)
        if found is None:
            found = self.seen_files.names(since)
            self._known = [*self._known[1 - _REMEMBERED :], (since, found)]
        return found

    def on_commit(self, offset: Offset) -> None:
        with self._lock:
            seen = next((seen for at, seen in self._cuts if at == offset), None)
            if seen is None:
                return
            self._cuts = [item for item in self._cuts if item[1] is not seen]
            self._known = [item for item in self._known if item[1] is not seen]
            seen |= set(offset["files"])
            self._known.append((offset, seen))

    @property
    def whole(self) -> bool:
        return bool(self.options["multi_line"])

    def _parquet_cut(
        self, chosen: list[StoredFile], offset: Offset, size: int, more: bool, tasks: int
    ) -> InputRange:
        footers = [self._footer(item) for item in chosen]
        rows = sum(footer.num_rows for footer in footers)
        wanted = self._wanted()
        partitioned = any("=" in item.name for item in chosen)
        odd = not all(fits(footer, wanted) for footer in footers)
        names = [item.name for item in chosen]
        if partitioned or odd:
            return InputRange(offset, [], rows, more, size, native=names)
        parts = []
        for item, footer in zip(chosen, footers, strict=True):
            for group in range(footer.num_row_groups):
                weight = footer.row_group(group).total_byte_size
                parts.append((weight, [item.name, item.modified_us, group, group + 1]))
        # Of object stores Spark's reader knows only what the user has added to it.
        native = names if size > _NATIVE_BYTES and self.store.local else None
        return InputRange(offset, _spread(parts, tasks), rows, more, size, native=native)

    def _footer(self, item: StoredFile) -> Any:
        """The footer of a file; of one that is new, somebody may still be writing it."""
        deadline = time.monotonic() + _WRITING_SECONDS
        while True:
            try:
                return pq.ParquetFile(self._opened(item)).metadata
            except (pa.ArrowException, OSError) as error:
                old_us = time.time_ns() // 1000 - item.modified_us
                if old_us > _WRITING_SECONDS * 1_000_000 or time.monotonic() > deadline:
                    raise self._unreadable(item.name, error) from None
                time.sleep(0.05)

    def _opened(self, item: StoredFile) -> Any:
        """A file to read the end of: what is far away is not fetched for that."""
        if self.store.local:
            return pa.BufferReader(self.store.map(item.name))
        return pa.PythonFile(RangedFile(self.store, item.name, item.size), "r")

    def _unreadable(self, name: str, error: Exception) -> RunError:
        return RunError(
            "TG-504",
            f"the source {self.context.source.name} cannot read {self.store.uri}/{name}: "
            f"{str(error).splitlines()[0]}",
            hint="put a readable file of the same name in its place and start again: nothing is "
            "lost, the epoch is read once more.",
        )

    def _wanted(self) -> pa.Schema:
        from tidegate.physical.typed import arrow_type

        fields = [(c.name, arrow_type(str(c.type))) for c in self.context.source.record_columns]
        fields += [(OP, pa.string())] if self.options["changelog"] else []
        return pa.schema(fields)

    # Reading

    def direct(self, read: Read) -> ParquetReader | PlainLinesReader | None:
        if self.options["format"] != "parquet":
            return self._plain_lines(read)
        return None if self._metadata else self._parquet(read)

    def _plain_lines(self, read: Read) -> PlainLinesReader | None:
        """Plain records are decoded by tasks, all else by Spark, which also says why it cannot."""
        options = self.options
        # Only Spark says of a bad record what is wrong with it.
        if read.located or not read.vectors:
            return None
        odd = options["timestamp_format"] is not None or options["encoding"] != "utf-8"
        if odd or self.whole or options["changelog"] or self._metadata:
            return None
        from tidegate.connectors.formats.lines import PlainLinesReader

        declared = [(c.name, str(c.type)) for c in self.context.source.record_columns]
        form = self._csv_lines(declared) if options["format"] == "csv" else _json_lines(declared)
        if form is None:
            return None
        names = tuple(name for name, _ in read.columns)
        return PlainLinesReader(self._text_reader(), form, names, read.arrival)

    def _csv_lines(self, declared: Sequence[tuple[str, str]]) -> CsvLines | None:
        from tidegate.connectors.formats.csv import CsvFormat, csv_schema
        from tidegate.connectors.formats.lines import CsvLines

        options = self.options
        schema = csv_schema(declared)
        delimiter = options["delimiter"].replace("\\t", "\t")
        form = CsvFormat(delimiter, options["quote"] or None, options["escape"])
        if schema is None or not form.is_plain or options["null_value"]:
            return None
        return CsvLines(schema, form, bool(options["header"]))

    def _parquet(self, read: Read) -> ParquetReader:
        columns = pa.schema([self._wanted().field(name) for name, _ in self._records(read)])
        arrival = read.arrival or bool(self._metadata)
        return ParquetReader(self.store.uri, columns, arrival, read.located)

    def frame(self, spark: SparkSession, read: Read, leaf: Leaf) -> DataFrame:
        if self.options["format"] == "parquet":
            return self._with_metadata(leaf(self._parquet(read)))
        plain = self._plain_lines(read)
        if plain is not None:
            return leaf(plain)
        from tidegate.connectors.formats.spark_text import TextFiles

        reader = self._text_reader()
        declared = [(c.name, str(c.type)) for c in self.context.source.record_columns]
        declared += [(OP, "STRING")] if self.options["changelog"] else []
        kept = (ARRIVAL_FILE, ARRIVAL_ROW) if read.arrival or self._metadata else ()
        frame = TextFiles(self.options, tuple(declared), kept, read.located).read(leaf(reader))
        frame = self._with_metadata(frame)
        return leaf.counted(frame) if self.whole else frame

    def _text_reader(self) -> TextReader:
        is_csv = self.options["format"] == "csv"
        return TextReader(
            self.store.uri,
            self.whole,
            is_csv and bool(self.options["header"]),
            self.options["encoding"] == "utf-8",
        )

    def native_frame(self, spark: SparkSession, read: Read, input_range: InputRange) -> DataFrame:
        from tidegate.sql.quoting import quoted

        paths = [literally(self.store.spark_uri(name)) for name in input_range.native]
        records = self._records(read)
        schema = ", ".join(f"{quoted(name)} {kind}" for name, kind in records)
        reader = spark.read.schema(schema).option("basePath", self.store.spark_uri(""))
        kept = list(_ROW_PLACE) if read.located else []
        kept += list(ROW_ARRIVAL) if read.arrival or self._metadata else []
        names = [quoted(name) for name, _ in records]
        return self._with_metadata(reader.parquet(*paths).selectExpr(*names, *kept))

    @property
    def _metadata(self) -> list[tuple[str, str]]:
        """Columns of what is told of a file, with what that is."""
        columns = self.context.source.stored_columns
        return [(c.name, c.metadata) for c in columns if c.metadata is not None]

    def _records(self, read: Read) -> list[tuple[str, str]]:
        """The columns of records that are wanted; one at least, so that rows come."""
        told = {name for name, _ in self._metadata}
        wanted = [item for item in read.columns if item[0] not in told]
        first = self.context.source.record_columns[0]
        return wanted or [(first.name, str(first.type))]

    def _with_metadata(self, frame: DataFrame) -> DataFrame:
        from tidegate.sql.quoting import quoted

        told = [f"{_TOLD[what]} AS {quoted(name)}" for name, what in self._metadata]
        return frame.selectExpr("*", *told) if told else frame


def literally(path: str) -> str:
    """A path for Spark's readers, which take [1] and {a,b} for patterns."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


# Where a row of parquet stood, as Spark's own reader tells it.
_ROW_PLACE = (
    f"_metadata.file_path AS {RECORD_FILE}",
    f"_metadata.row_index + 1 AS {RECORD_LINE}",
)
# What is told of a file: the place of a row says when it was written, and then its name.
_TOLD = {
    "path": f"substr({ARRIVAL_FILE}, 22)",
    "modified": f"timestamp_micros(CAST(substr({ARRIVAL_FILE}, 1, 20) AS BIGINT))",
}
_TIME = "lpad(CAST(unix_micros(_metadata.file_modification_time) AS STRING), 20, '0')"
ROW_ARRIVAL = (
    f"concat_ws(' ', {_TIME}, _metadata.file_path) AS {ARRIVAL_FILE}",
    f"_metadata.row_index AS {ARRIVAL_ROW}",
)


def _text_parts(item: StoredFile, tasks: int, whole: bool) -> list[tuple[int, list[Any]]]:
    """A text file as one part, or where it is large as several."""
    count = min(tasks, item.size // _PART_BYTES)
    if whole or count < 2 or is_compressed(item.name):
        return [(item.size, [item.name, item.modified_us, 0, None])]
    bounds = [item.size * part // count for part in range(count)]
    ends: Sequence[int | None] = [*bounds[1:], None]
    return [
        (item.size // count, [item.name, item.modified_us, start, end])
        for start, end in zip(bounds, ends, strict=True)
    ]


def _spread(parts: list[tuple[int, list[Any]]], tasks: int) -> list[list[Any]]:
    """Parts over tasks, so that each reads about the same; the largest are placed first."""
    splits: list[list[Any]] = [[] for _ in range(tasks)]
    loads = [0] * tasks
    for weight, part in sorted(parts, key=lambda item: -item[0]):
        least = loads.index(min(loads))
        splits[least].append(part)
        loads[least] += weight
    return splits


def _json_lines(declared: Sequence[tuple[str, str]]) -> JsonLines | None:
    from tidegate.connectors.formats.json import json_schema
    from tidegate.connectors.formats.lines import JsonLines

    schema = json_schema(declared)
    return None if schema is None else JsonLines(schema)
