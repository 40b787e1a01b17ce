"""Tables of PostgreSQL, as a sink, a source and a lookup table: what can be said of them.

`postgres_sink`, `postgres_source` and `postgres_lookup` do the work, `postgres_client` talks to the
server. They need psycopg, which is loaded when a pipeline opens one of them.
"""

from __future__ import annotations

from tidegate.catalog.connector import (
    ANY_KIND,
    Columns,
    ConnectorSpec,
    LookupSpec,
    SinkSpec,
    SourceSpec,
)
from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.connectors.common_options import EXISTING
from tidegate.connectors.postgres.column_types import unknown_type

_COMMON = (
    OptionSpec("host", OptionType.TEXT, "the server", default="localhost"),
    OptionSpec("port", OptionType.INTEGER, "its port", default=5432, minimum=1),
    OptionSpec("database", OptionType.TEXT, "the database", required=True),
    OptionSpec("table", OptionType.TEXT, "the table, or schema.table", required=True),
    OptionSpec("user", OptionType.TEXT, "the user to log in as"),
    OptionSpec("password", OptionType.TEXT, "the password to log in with", secret=True),
    OptionSpec(
        "sslmode",
        OptionType.TEXT,
        "how the connection is secured",
        default="prefer",
        choices=("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    ),
    OptionSpec("sslrootcert", OptionType.TEXT, "the file with the certificates that are trusted"),
    OptionSpec(
        "connect_timeout",
        OptionType.DURATION,
        "how long to wait for an answer when connecting",
        default=10_000_000,
        minimum=1_000_000,
    ),
)


def _check_columns(options: object, columns: Columns) -> str | None:
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
                "a NOT NULL column that is larger in every row that is added later: the table is "
                "read for ever; without it, once",
            ),
        ),
        bounded=lambda options: options["increasing"] is None,
        identity=("host", "port", "database", "table", "increasing"),
    ),
    sink=SinkSpec(
        (
            *_COMMON,
            OptionSpec(
                "create_table",
                OptionType.BOOLEAN,
                "true if the table is to be created where it is missing",
                default=False,
            ),
            EXISTING,
        ),
        accepts=lambda _: ANY_KIND,
        check_columns=_check_columns,
        needs_key=True,
        exclusive=("table", "host", "port", "database"),
    ),
    lookup=LookupSpec(_COMMON, consistent_in_epoch=False),
)
