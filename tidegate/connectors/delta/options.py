"""Tables of Delta Lake, as a sink and as a source: what can be said of them.

`delta_sink` and `delta_source` do the work, `delta_table` knows how a table is laid out. They need
deltalake, which is loaded when a pipeline opens one of them; no Java is involved.
"""

from __future__ import annotations

import re

from tidegate.catalog.connector import (
    ANY_KIND,
    Columns,
    ConnectorSpec,
    SinkSpec,
    SourceSpec,
    Values,
)
from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.connectors.common_options import EXISTING

# What Delta has a type for; texts of a length are texts.
_PLAIN = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL"),
    *("STRING", "VARCHAR", "CHAR", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"),
)
_NESTED = ("ARRAY", "MAP", "STRUCT")
# What a log can say of a whole file without a doubt about how it is written.
_FOLDERS = ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "STRING", "VARCHAR", "CHAR", "DATE")
_PATH = OptionSpec("path", OptionType.TEXT, "the directory of the table", required=True)


def _base(kind: str) -> str:
    """A type without what is inside it."""
    return re.split(r"[(<\s]", kind, maxsplit=1)[0].upper()


def _check_columns(options: Values, columns: Columns) -> str | None:
    for name, kind in columns:
        if _base(kind) not in (*_PLAIN, *_NESTED):
            return f"Delta has no type for the column {name}, which is {kind}: CAST it"
    kinds = {name.lower(): (name, kind) for name, kind in columns}
    for wanted in options["partition_by"] or ():
        if wanted.lower() not in kinds:
            continue
        name, kind = kinds[wanted.lower()]
        if _base(kind) not in _FOLDERS:
            return (
                f"partition_by: {name} is {kind}; take a column that is a date, a whole number, a "
                f"text or a BOOLEAN, such as CAST({name} AS DATE)"
            )
    if columns and kinds.keys() <= {name.lower() for name in options["partition_by"] or ()}:
        return "partition_by names every column, so nothing is left to write into the files"
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
                "'snapshot': the table as it is, then what is appended; or a version: what was "
                "appended after it",
                default="snapshot",
                check=_start,
            ),
            OptionSpec(
                "bounded",
                OptionType.BOOLEAN,
                "true if only what is there at the start is read",
                default=False,
            ),
            OptionSpec(
                "on_rewrite",
                OptionType.TEXT,
                "what to do with a version that changes or removes rows: stop, or skip all of it",
                default="stop",
                choices=("stop", "skip"),
            ),
            OptionSpec(
                "files_per_epoch",
                OptionType.INTEGER,
                "files handed out per epoch; the setting of that name if left out",
                minimum=1,
            ),
        ),
        bounded=lambda options: bool(options["bounded"]),
        identity=("path", "start"),
    ),
    sink=SinkSpec(
        (
            _PATH,
            OptionSpec(
                "create_table",
                OptionType.BOOLEAN,
                "true if the table is to be created where it is missing",
                default=False,
            ),
            OptionSpec(
                "partition_by",
                OptionType.NAMES,
                "the columns by which a table that is created is partitioned",
            ),
            EXISTING,
        ),
        accepts=lambda _: ANY_KIND,
        check_columns=_check_columns,
        needs_key=True,
        exclusive=("path",),
        is_read_by=lambda sink, source: bool(sink["path"] == source["path"]),
    ),
)
