"""The option specs of the postgres connector."""

from __future__ import annotations

from tidegate.catalog.connector import (
    ANY_KIND,
    ColumnTypes,
    ConnectorSpec,
    LookupSpec,
    SinkSpec,
    SourceSpec,
)
from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.connectors.common_options import EXISTING
from tidegate.connectors.postgres.column_types import unknown_type

_COMMON = (
    OptionSpec("host", OptionType.TEXT, "host name of the server", default="localhost"),
    OptionSpec("port", OptionType.INTEGER, "port of the server", default=5432, minimum=1),
    OptionSpec("database", OptionType.TEXT, "name of the database", required=True),
    OptionSpec(
        "table",
        OptionType.TEXT,
        "name of the table, optionally with its schema: schema.table",
        required=True,
    ),
    OptionSpec("user", OptionType.TEXT, "user name"),
    OptionSpec("password", OptionType.TEXT, "password", secret=True),
    OptionSpec(
        "sslmode",
        OptionType.TEXT,
        "encryption of the connection, as in libpq",
        default="prefer",
        choices=("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    ),
    OptionSpec("sslrootcert", OptionType.TEXT, "file with the trusted certificates"),
    OptionSpec(
        "connect_timeout",
        OptionType.DURATION,
        "timeout for connecting",
        default=10_000_000,
        minimum=1_000_000,
    ),
)


def _check_columns(options: object, columns: ColumnTypes) -> str | None:
    return unknown_type(columns)


SPEC = ConnectorSpec(
    "postgres",
    "tables of PostgreSQL",
    source=SourceSpec(
        (
            *_COMMON,
            OptionSpec(
                "increasing",
                OptionType.TEXT,
                "NOT NULL column that is larger in every new row, to read new rows continuously; "
                "default: read the table once",
            ),
        ),
        is_bounded=lambda options: options["increasing"] is None,
        identity_options=("host", "port", "database", "table", "increasing"),
    ),
    sink=SinkSpec(
        (
            *_COMMON,
            OptionSpec(
                "create_table",
                OptionType.BOOLEAN,
                "true to create the table if it does not exist",
                default=False,
            ),
            EXISTING,
        ),
        accepts=lambda _: ANY_KIND,
        check_columns=_check_columns,
        needs_key=True,
        exclusive_options=("table", "host", "port", "database"),
    ),
    lookup=LookupSpec(_COMMON, consistent_in_epoch=False),
)
