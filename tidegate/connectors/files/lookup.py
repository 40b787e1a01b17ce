"""Directories of files as lookup tables: all rows of all files, read again when a file changes.

Malformed records are found as in a source. They stop the pipeline, because rows that look them up
would silently find nothing.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pyarrow as pa

from tidegate.columns import (
    ARRIVAL_FILE,
    ARRIVAL_ROW,
    CONTROL,
    MALFORMED_REASON,
    MALFORMED_RECORD,
    NOW,
    RECORD_FILE,
    RECORD_LINE,
)
from tidegate.connectors.files.listing import WRITING_SECONDS, new_files
from tidegate.connectors.files.source import ROW_ARRIVAL, escape_glob
from tidegate.connectors.formats.lines import TextReader
from tidegate.connectors.table_lookup import TableLookup
from tidegate.errors import RunError, did_you_mean
from tidegate.physical.typed import arrow_type
from tidegate.storage import StoredFile, open_store, uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.connectors.base import LookupContext


class FileRows:
    """The rows of all files in a directory."""

    def __init__(self, context: LookupContext) -> None:
        self.table = context.table
        self.options = context.table.options
        folder = self.table.script.folder
        self.store = open_store(uri(self.options["path"], folder))
        if self.store.local and not self.store.local_path("").is_dir():
            path = os.path.join(folder, self.options["path"])  # noqa: PTH118
            raise RunError(
                "TG-522",
                f"the lookup table {self.table.name} reads the directory {path}, which does not "
                "exist",
                hint=f"mkdir -p {path}, or correct the option path.",
            )

    def version(self) -> list[tuple[str, int, int]]:
        return [(item.name, item.size, item.modified_us) for item in self._items()]

    def _items(self) -> list[StoredFile]:
        return new_files(self.store.list(), set(), self.options["glob"])

    def rows(self, spark: SparkSession) -> pa.Table:
        deadline = time.monotonic() + WRITING_SECONDS
        while True:
            items = self._items()
            try:
                return self._read(spark, items)
            except Exception as error:
                # A new file may still be being written.
                now_us = time.time_ns() // 1000
                is_new = any(now_us - i.modified_us < WRITING_SECONDS * 1_000_000 for i in items)
                if not is_new or time.monotonic() > deadline:
                    raise self._unreadable(error) from None
                time.sleep(0.1)

    def _read(self, spark: SparkSession, items: list[StoredFile]) -> pa.Table:
        columns = [(c.name, str(c.type)) for c in self.table.columns]
        schema = pa.schema([(name, arrow_type(sql_type)) for name, sql_type in columns])
        if not items:
            return schema.empty_table()
        is_parquet = self.options["format"] == "parquet"
        frame = self._parquet(spark, items) if is_parquet else self._text(spark, items)
        rows = frame.toArrow()
        self._require_well_formed(rows)
        order = [(ARRIVAL_FILE, "ascending"), (ARRIVAL_ROW, "ascending")]
        rows = rows.sort_by(order).select([name for name, _ in columns])
        return rows.cast(schema).combine_chunks()

    def _parquet(self, spark: SparkSession, items: list[StoredFile]) -> DataFrame:
        from tidegate.sql.quoting import quote_identifier

        paths = [escape_glob(self.store.spark_uri(item.name)) for item in items]
        reader = spark.read.option("basePath", self.store.spark_uri(""))
        file_columns = reader.option("mergeSchema", "true").parquet(*paths).columns
        for column in self.table.columns:
            if column.name.lower() not in {name.lower() for name in file_columns}:
                raise RunError(
                    "TG-523",
                    f"the files have no column {column.name}",
                    hint=did_you_mean(column.name, file_columns, "columns they have"),
                )
        schema = ", ".join(f"{quote_identifier(c.name)} {c.type}" for c in self.table.columns)
        names = [quote_identifier(c.name) for c in self.table.columns]
        reader = spark.read.schema(schema).option("basePath", self.store.spark_uri(""))
        return reader.parquet(*paths).selectExpr(*names, *ROW_ARRIVAL)

    def _text(self, spark: SparkSession, items: list[StoredFile]) -> DataFrame:
        from tidegate.connectors.formats.spark_text import SparkTextDecoder

        is_csv = self.options["format"] == "csv"
        reader = TextReader(
            self.store.uri,
            bool(self.options["multi_line"]),
            is_csv and bool(self.options["header"]),
            self.options["encoding"] == "utf-8",
        )
        splits = [[item.name, item.modified_us, 0, None] for item in items]
        batches = [batch for split in splits for batch, _ in reader.read(split)]
        lines = spark.createDataFrame(pa.Table.from_batches(batches, schema=reader.schema))
        raw = lines.selectExpr("*", f"CAST(NULL AS BINARY) AS {CONTROL}", f"0L AS {NOW}")
        columns = tuple((c.name, str(c.type)) for c in self.table.columns)
        return SparkTextDecoder(self.options, columns, (ARRIVAL_FILE, ARRIVAL_ROW), True).read(raw)

    def _require_well_formed(self, rows: pa.Table) -> None:
        if MALFORMED_RECORD not in rows.column_names:
            return
        malformed_rows = (
            rows.filter(rows.column(MALFORMED_RECORD).is_valid()).slice(0, 1).to_pylist()
        )
        for row in malformed_rows:
            raise RunError(
                "TG-504",
                f"line {row[RECORD_LINE]} of {row[RECORD_FILE]}: {row[MALFORMED_REASON]}",
            )

    def _unreadable(self, error: Exception) -> RunError:
        known_error = error if isinstance(error, RunError) else None
        return RunError(
            "TG-529",
            f"the lookup table {self.table.name} cannot be read: "
            f"{known_error.message if known_error is not None else str(error).splitlines()[0]}",
            hint=(known_error.hint if known_error is not None else None)
            or "fix the file and start again; no data was lost.",
        )


def open_lookup(context: LookupContext) -> TableLookup:
    return TableLookup(context, FileRows(context))
