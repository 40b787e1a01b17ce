"""PostgreSQL tables. The options are checked; reading and writing is not built yet."""

from __future__ import annotations

from tidegate.catalog.connector import ANY_KIND, ConnectorSpec, LookupSpec, SinkSpec, SourceSpec
from tidegate.catalog.options import OptionSpec, OptionType

_COMMON = (
    OptionSpec("host", OptionType.TEXT, "the server", default="localhost"),
    OptionSpec("port", OptionType.INTEGER, "its port", default=5432, minimum=1),
    OptionSpec("database", OptionType.TEXT, "the database", required=True),
    OptionSpec("table", OptionType.TEXT, "the table", required=True),
    OptionSpec("user", OptionType.TEXT, "the user to log in as"),
    OptionSpec("password", OptionType.TEXT, "the password to log in with", secret=True),
)

SPEC = ConnectorSpec(
    "postgres",
    "tables of PostgreSQL",
    source=SourceSpec(_COMMON, bounded=lambda _: True, built=False),
    sink=SinkSpec(_COMMON, accepts=lambda _: ANY_KIND, built=False),
    lookup=LookupSpec(_COMMON, built=False),
)
