"""The option specs of the delta connector."""

from __future__ import annotations

import re

from tidegate.catalog.connector import (
    ANY_KIND,
    ColumnTypes,
    ConnectorSpec,
    OptionValues,
    SinkSpec,
    SourceSpec,
)
from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.connectors.common_options import EXISTING

# The Spark types with a type in Delta. VARCHAR(n) and CHAR(n) are stored as STRING.
_PLAIN = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL"),
    *("STRING", "VARCHAR", "CHAR", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"),
)
_NESTED = ("ARRAY", "MAP", "STRUCT")
# The types of partition columns: the log stores their values as text without ambiguity.
_PARTITION_TYPES = (
    "BOOLEAN",
    "TINYINT",
    "SMALLINT",
    "INT",
    "BIGINT",
    "STRING",
    "VARCHAR",
    "CHAR",
    "DATE",
)
_PATH = OptionSpec("path", OptionType.TEXT, "directory of the table (path or URI)", required=True)


def _base(sql_type: str) -> str:
    """Return a type without its parameters."""
    return re.split(r"[(<\s]", sql_type, maxsplit=1)[0].upper()


def _check_columns(options: OptionValues, columns: ColumnTypes) -> str | None:
    for name, sql_type in columns:
        if _base(sql_type) not in (*_PLAIN, *_NESTED):
            return f"Delta has no type for the column {name}, which is {sql_type}: CAST it"
    by_name = {name.lower(): (name, sql_type) for name, sql_type in columns}
    for column in options["partition_by"] or ():
        if column.lower() not in by_name:
            continue
        name, sql_type = by_name[column.lower()]
        if _base(sql_type) not in _PARTITION_TYPES:
            return (
                f"partition_by: {name} is {sql_type}; use a column with dates, integers, texts or "
                f"BOOLEANs, such as CAST({name} AS DATE)"
            )
    if columns and by_name.keys() <= {name.lower() for name in options["partition_by"] or ()}:
        return "partition_by contains every column, so no column is left for the files"
    return None


def _start(value: str) -> str | None:
    if value.lower() == "snapshot" or value.isdigit():
        return None
    return f"{value!r} is neither 'snapshot' nor the number of a version"


SPEC = ConnectorSpec(
    "delta",
    "tables of Delta Lake",
    source=SourceSpec(
        (
            _PATH,
            OptionSpec(
                "start",
                OptionType.TEXT,
                "snapshot: the current rows, then appended rows; or the number of a version: "
                "only rows appended after it",
                default="snapshot",
                example="'snapshot' or the number of a version",
                check=_start,
            ),
            OptionSpec(
                "bounded",
                OptionType.BOOLEAN,
                "true to read only the rows that exist when the stream first starts",
                default=False,
            ),
            OptionSpec(
                "on_rewrite",
                OptionType.TEXT,
                "action if a version updates or deletes rows: stop, or skip the whole version",
                default="stop",
                choices=("stop", "skip"),
            ),
            OptionSpec(
                "files_per_epoch",
                OptionType.INTEGER,
                "maximum number of files read per epoch; default: SET files_per_epoch",
                minimum=1,
            ),
        ),
        is_bounded=lambda options: bool(options["bounded"]),
        identity_options=("path", "start"),
    ),
    sink=SinkSpec(
        (
            _PATH,
            OptionSpec(
                "create_table",
                OptionType.BOOLEAN,
                "true to create the table if it does not exist",
                default=False,
            ),
            OptionSpec(
                "partition_by",
                OptionType.NAMES,
                "partition columns of the table that is created",
            ),
            EXISTING,
        ),
        accepts=lambda _: ANY_KIND,
        check_columns=_check_columns,
        needs_key=True,
        exclusive_options=("path",),
        is_read_by=lambda sink, source: bool(sink["path"] == source["path"]),
    ),
)
