"""The files source: finds new files by listing a directory, and reads each of them once.

`FilesSource` plans ranges on the driver. `ParquetReader` reads Parquet files in the tasks if their
columns have the declared types; otherwise Spark's own reader does. Text records are read by
`formats.lines` and `formats.spark_text`.
"""

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
from tidegate.connectors.base import (
    FrameBuilder,
    InputRange,
    Offset,
    ScanRequest,
    SourceContext,
    balance_splits,
)
from tidegate.connectors.files.listing import (
    WRITING_SECONDS,
    SeenFiles,
    new_files,
    partly_read_merge,
)
from tidegate.connectors.formats.lines import TextReader, is_compressed
from tidegate.errors import RunError
from tidegate.operators.kernels.ordering import ARRIVAL_FIELDS
from tidegate.storage import RangedFile, StoredFile, open_store, uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.connectors.formats.lines import ArrowLinesReader, CsvLines, JsonLines


# ---- Reading Parquet in tasks. Python workers import this module, which must not load the parser.

_BATCH_ROWS = 100_000


@dataclass(frozen=True)
class ParquetReader:
    """Reads splits [file, modification time, first row group, end] of the files below a root."""

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
        file_uri = f"{store.uri}/{name}"
        row = sum(file.metadata.row_group(group).num_rows for group in range(first))
        for batch in file.iter_batches(
            _BATCH_ROWS, list(range(first, last)), self.columns.names, use_threads=False
        ):
            count = batch.num_rows
            arrays = [batch.column(field.name).cast(field.type) for field in self.columns]
            if self.arrival:
                arrays.append(pa.repeat(pa.scalar(f"{modified_us:020d} {file_uri}"), count))
                arrays.append(pa.array(np.arange(row, row + count)))
            if self.located:
                arrays.append(pa.repeat(pa.scalar(file_uri), count))
                arrays.append(pa.array(np.arange(row + 1, row + count + 1)))
            row += count
            # `InputRange.rows` has counted the rows by the footers.
            yield pa.record_batch(arrays, schema=self.schema), 0


def has_declared_types(footer: Any, declared: pa.Schema) -> bool:
    """Return whether the columns of a file, by its footer, have exactly the declared types."""
    file = footer.schema.to_arrow_schema()
    int96_columns = _int96_columns(footer)
    return all(
        len(file.get_all_field_indices(field.name)) == 1
        and (
            _is_same_type(file.field(field.name).type, field.type)
            or _is_timestamp_in(field, int96_columns)
        )
        for field in declared
    )


def _is_same_type(file_type: pa.DataType, declared: pa.DataType) -> bool:
    plain = not pa.types.is_nested(declared) and not pa.types.is_dictionary(file_type)
    return plain and file_type.equals(declared)


def _is_timestamp_in(field: pa.Field, int96_columns: set[str]) -> bool:
    return field.name in int96_columns and bool(field.type.equals(pa.timestamp("us", "UTC")))


def _int96_columns(footer: Any) -> set[str]:
    """Return the INT96 timestamp columns that Spark has written in today's calendar.

    INT96 timestamps of other writers, or of Spark in its legacy mode, may be in an older calendar.
    Those are left to Spark.
    """
    metadata = footer.metadata or {}
    if b"org.apache.spark.version" not in metadata or b"org.apache.spark.legacyINT96" in metadata:
        return set()
    columns = [footer.schema.column(index) for index in range(len(footer.schema))]
    return {column.name for column in columns if column.physical_type == "INT96"}


# ---- The source.

# The minimum size of a split of a text file.
_PART_BYTES = 8 << 20
# Above this size Spark's own Parquet reader is faster, although it needs a frame for each epoch.
_NATIVE_BYTES = 48 << 20
# The number of distinct offsets whose file names are cached.
_MAX_CACHED_OFFSETS = 8


class FilesSource:
    """A directory to which files are added. The offset contains the names of the files read."""

    def __init__(self, context: SourceContext) -> None:
        self.context = context
        self.options = context.source.options
        self.store = open_store(uri(self.options["path"], context.source.script.folder))
        self.seen_files = SeenFiles(open_store(context.offsets_uri))
        self.limit = self.options["files_per_epoch"] or context.settings["files_per_epoch"]
        # The files read up to committed offsets, and up to the start of ranges that were planned.
        self._committed: list[tuple[Offset, set[str]]] = []
        self._planned: list[tuple[Offset, set[str]]] = []
        self._lock = threading.Lock()
        self._require_directory()

    def _require_directory(self) -> None:
        """Reject a missing directory. It would look like an empty one."""
        path = os.path.join(self.context.source.script.folder, self.options["path"])  # noqa: PTH118
        if self.store.local and not self.store.local_path("").is_dir():
            raise RunError(
                "TG-522",
                f"the source {self.context.source.name} reads the directory {path}, which does "
                "not exist",
                hint=f"mkdir -p {path}, or correct the option path.",
            )

    # Planning.

    def plan_range(self, since: Offset | None, tasks: int) -> InputRange | None:
        with self._lock:
            seen = self._seen(since)
            files = new_files(self.store.list(), seen, self.options["glob"])
            if not files:
                return None
            self._reject_merged(files, seen)
            chosen = files[: self.limit]
            chosen = chosen[: self.context.sizer.fitting(item.size for item in chosen)]
            offset = self.seen_files.next(since, [item.name for item in chosen])
            self._planned = [*self._planned[1 - _MAX_CACHED_OFFSETS :], (offset, seen)]
        size = sum(item.size for item in chosen)
        more = len(files) > len(chosen)
        remaining = sum(item.size for item in files[len(chosen) :])
        if self.options["format"] == "parquet":
            input_range = self._plan_parquet(chosen, offset, size, more, tasks)
            return replace(input_range, progress=(size, remaining))
        splits = balance_splits(
            [part for item in chosen for part in _text_parts(item, tasks, self.reads_whole_files)],
            tasks,
        )
        return InputRange(offset, splits, size=size, has_more=more, progress=(size, remaining))

    def _reject_merged(self, files: list[StoredFile], seen: set[str]) -> None:
        merged = partly_read_merge(files, seen)
        if merged is not None:
            raise RunError(
                "TG-528",
                f"the source {self.context.source.name} has read files of {self.options['path']} "
                f"that a files sink has since merged into {merged}, possibly with files that it "
                "has not read",
                hint="read the stream that is written there instead of the files; or leave out "
                "compact_after of the sink and give the stream that reads the directory another "
                "name, so that it starts from the beginning.",
            )

    def _seen(self, since: Offset | None) -> set[str]:
        """Return the files that were read up to an offset, cached."""
        seen = next((names for at, names in self._committed if at == since), None)
        if seen is None:
            seen = self.seen_files.names(since)
            self._committed = [*self._committed[1 - _MAX_CACHED_OFFSETS :], (since, seen)]
        return seen

    def on_commit(self, offset: Offset) -> None:
        with self._lock:
            seen = next((seen for at, seen in self._planned if at == offset), None)
            if seen is None:
                return
            self._planned = [item for item in self._planned if item[1] is not seen]
            self._committed = [item for item in self._committed if item[1] is not seen]
            seen |= set(offset["files"])
            self._committed.append((offset, seen))

    @property
    def reads_whole_files(self) -> bool:
        """Whether a split is a whole file, because records may span several lines."""
        return bool(self.options["multi_line"])

    def _plan_parquet(
        self, chosen: list[StoredFile], offset: Offset, size: int, more: bool, tasks: int
    ) -> InputRange:
        footers = [self._footer(item) for item in chosen]
        rows = sum(footer.num_rows for footer in footers)
        declared = self._declared_schema()
        partitioned = any("=" in item.name for item in chosen)
        has_other_types = not all(has_declared_types(footer, declared) for footer in footers)
        names = [item.name for item in chosen]
        if partitioned or has_other_types:
            return InputRange(offset, [], rows, more, size, spark_read=names)
        parts = []
        for item, footer in zip(chosen, footers, strict=True):
            for group in range(footer.num_row_groups):
                weight = footer.row_group(group).total_byte_size
                parts.append((weight, [item.name, item.modified_us, group, group + 1]))
        # Spark can only read object stores that the user has configured in Spark.
        native = names if size > _NATIVE_BYTES and self.store.local else None
        return InputRange(offset, balance_splits(parts, tasks), rows, more, size, spark_read=native)

    def _footer(self, item: StoredFile) -> Any:
        """Read the footer of a file, with retries if the file may still be being written."""
        deadline = time.monotonic() + WRITING_SECONDS
        while True:
            try:
                return pq.ParquetFile(self._open(item)).metadata
            except (pa.ArrowException, OSError) as error:
                age_us = time.time_ns() // 1000 - item.modified_us
                if age_us > WRITING_SECONDS * 1_000_000 or time.monotonic() > deadline:
                    raise self._unreadable(item.name, error) from None
                time.sleep(0.05)

    def _open(self, item: StoredFile) -> Any:
        """Open a file to read its footer, without downloading it from an object store."""
        if self.store.local:
            return pa.BufferReader(self.store.map(item.name))
        return pa.PythonFile(RangedFile(self.store, item.name, item.size), "r")

    def _unreadable(self, name: str, error: Exception) -> RunError:
        return RunError(
            "TG-529",
            f"the source {self.context.source.name} cannot read {self.store.uri}/{name}: "
            f"{str(error).splitlines()[0]}",
            hint="replace it by a readable file of the same name and start again. No data was "
            "lost, and the epoch will be read again.",
        )

    def _declared_schema(self) -> pa.Schema:
        from tidegate.physical.typed import arrow_type

        fields = [(c.name, arrow_type(str(c.type))) for c in self.context.source.record_columns]
        fields += [(OP, pa.string())] if self.options["changelog"] else []
        return pa.schema(fields)

    # Reading.

    def create_reader(self, request: ScanRequest) -> ParquetReader | ArrowLinesReader | None:
        if self.options["format"] != "parquet":
            return self._plain_lines(request)
        return None if self._metadata else self._parquet(request)

    def _plain_lines(self, request: ScanRequest) -> ArrowLinesReader | None:
        """Return a reader that decodes records in the tasks, or None if Spark must decode them."""
        options = self.options
        # Only Spark can report why a record is malformed.
        if request.with_location or not request.decode_in_tasks:
            return None
        special = options["timestamp_format"] is not None or options["encoding"] != "utf-8"
        if special or self.reads_whole_files or options["changelog"] or self._metadata:
            return None
        from tidegate.connectors.formats.lines import ArrowLinesReader

        declared = [(c.name, str(c.type)) for c in self.context.source.record_columns]
        line_format = (
            self._csv_lines(declared) if options["format"] == "csv" else _json_lines(declared)
        )
        if line_format is None:
            return None
        names = tuple(name for name, _ in request.columns)
        return ArrowLinesReader(self._text_reader(), line_format, names, request.with_arrival)

    def _csv_lines(self, declared: Sequence[tuple[str, str]]) -> CsvLines | None:
        from tidegate.connectors.formats.csv import CsvFormat, csv_schema
        from tidegate.connectors.formats.lines import CsvLines

        options = self.options
        schema = csv_schema(declared)
        delimiter = options["delimiter"].replace("\\t", "\t")
        csv_format = CsvFormat(delimiter, options["quote"] or None, options["escape"])
        if schema is None or not csv_format.is_plain or options["null_value"]:
            return None
        return CsvLines(schema, csv_format, bool(options["header"]))

    def _parquet(self, request: ScanRequest) -> ParquetReader:
        columns = pa.schema(
            [self._declared_schema().field(name) for name, _ in self._records(request)]
        )
        arrival = request.with_arrival or bool(self._metadata)
        return ParquetReader(self.store.uri, columns, arrival, request.with_location)

    def frame(self, spark: SparkSession, request: ScanRequest, builder: FrameBuilder) -> DataFrame:
        if self.options["format"] == "parquet":
            return self._with_metadata(builder.read_frame(self._parquet(request)))
        plain = self._plain_lines(request)
        if plain is not None:
            return builder.read_frame(plain)
        from tidegate.connectors.formats.spark_text import SparkTextDecoder

        reader = self._text_reader()
        declared = [(c.name, str(c.type)) for c in self.context.source.record_columns]
        declared += [(OP, "STRING")] if self.options["changelog"] else []
        position_columns = (
            (ARRIVAL_FILE, ARRIVAL_ROW) if request.with_arrival or self._metadata else ()
        )
        frame = SparkTextDecoder(
            self.options, tuple(declared), position_columns, request.with_location
        ).read(builder.read_frame(reader))
        frame = self._with_metadata(frame)
        return builder.count_rows(frame) if self.reads_whole_files else frame

    def _text_reader(self) -> TextReader:
        is_csv = self.options["format"] == "csv"
        return TextReader(
            self.store.uri,
            self.reads_whole_files,
            is_csv and bool(self.options["header"]),
            self.options["encoding"] == "utf-8",
        )

    def spark_read_frame(
        self, spark: SparkSession, request: ScanRequest, input_range: InputRange
    ) -> DataFrame:
        from tidegate.sql.quoting import quote_identifier

        paths = [escape_glob(self.store.spark_uri(name)) for name in input_range.spark_read]
        records = self._records(request)
        schema = ", ".join(f"{quote_identifier(name)} {sql_type}" for name, sql_type in records)
        reader = spark.read.schema(schema).option("basePath", self.store.spark_uri(""))
        extra_columns = list(_ROW_LOCATION) if request.with_location else []
        extra_columns += list(ROW_ARRIVAL) if request.with_arrival or self._metadata else []
        names = [quote_identifier(name) for name, _ in records]
        return self._with_metadata(reader.parquet(*paths).selectExpr(*names, *extra_columns))

    @property
    def _metadata(self) -> list[tuple[str, str]]:
        """The declared metadata columns, with the metadata that they contain."""
        columns = self.context.source.stored_columns
        return [(c.name, c.metadata) for c in columns if c.metadata is not None]

    def _records(self, request: ScanRequest) -> list[tuple[str, str]]:
        """Return the columns to read from the files, at least one so that rows are counted."""
        metadata_names = {name for name, _ in self._metadata}
        columns = [item for item in request.columns if item[0] not in metadata_names]
        first = self.context.source.record_columns[0]
        return columns or [(first.name, str(first.type))]

    def _with_metadata(self, frame: DataFrame) -> DataFrame:
        from tidegate.sql.quoting import quote_identifier

        columns = [
            f"{_METADATA[metadata]} AS {quote_identifier(name)}"
            for name, metadata in self._metadata
        ]
        return frame.selectExpr("*", *columns) if columns else frame


def escape_glob(path: str) -> str:
    """Escape a path for Spark's readers, which interpret [1] and {a,b} as patterns."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


# The file and row number of a Parquet row, with Spark's own reader.
_ROW_LOCATION = (
    f"_metadata.file_path AS {RECORD_FILE}",
    f"_metadata.row_index + 1 AS {RECORD_LINE}",
)
# Expressions of metadata columns. ARRIVAL_FILE is the modification time followed by the name.
_METADATA = {
    "path": f"substr({ARRIVAL_FILE}, 22)",
    "modified": f"timestamp_micros(CAST(substr({ARRIVAL_FILE}, 1, 20) AS BIGINT))",
}
_TIME = "lpad(CAST(unix_micros(_metadata.file_modification_time) AS STRING), 20, '0')"
ROW_ARRIVAL = (
    f"concat_ws(' ', {_TIME}, _metadata.file_path) AS {ARRIVAL_FILE}",
    f"_metadata.row_index AS {ARRIVAL_ROW}",
)


def _text_parts(item: StoredFile, tasks: int, whole: bool) -> list[tuple[int, list[Any]]]:
    """Divide a large text file into parts with their sizes."""
    count = min(tasks, item.size // _PART_BYTES)
    if whole or count < 2 or is_compressed(item.name):
        return [(item.size, [item.name, item.modified_us, 0, None])]
    bounds = [item.size * part // count for part in range(count)]
    ends: Sequence[int | None] = [*bounds[1:], None]
    return [
        (item.size // count, [item.name, item.modified_us, start, end])
        for start, end in zip(bounds, ends, strict=True)
    ]


def _json_lines(declared: Sequence[tuple[str, str]]) -> JsonLines | None:
    from tidegate.connectors.formats.json import json_schema
    from tidegate.connectors.formats.lines import JsonLines

    schema = json_schema(declared)
    return None if schema is None else JsonLines(schema)
