"""What can be said of records in Avro: the schema, or the registry that knows it."""

from __future__ import annotations

from urllib.parse import urlsplit

from tidegate.catalog.connector import Columns, Complaint, Values
from tidegate.catalog.options import OptionSpec, OptionType

_AVRO = ("format", ("avro",))


def _is_url(url: str) -> str | None:
    """What is wrong with the address of a registry; not shown, as it may hold a password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "it is not an address"
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return "it does not begin with http:// or https:// and a host"
    if "@" in parts.netloc:
        return "names and passwords belong into registry_username and registry_password"
    return None


def _is_schema(text: str) -> str | None:
    from tidegate.connectors.kafka_avro import schema_problem

    return schema_problem(text)


AVRO_WRITING = (
    OptionSpec(
        "registry_url",
        OptionType.TEXT,
        "the schema registry; its numbers of schemas stand before the records",
        only_with=_AVRO,
        check=_is_url,
    ),
    OptionSpec(
        "registry_username", OptionType.TEXT, "the user to ask the registry as", only_with=_AVRO
    ),
    OptionSpec(
        "registry_password",
        OptionType.TEXT,
        "the password to ask the registry with",
        secret=True,
        only_with=_AVRO,
    ),
)
AVRO_READING = (
    OptionSpec(
        "avro_schema",
        OptionType.TEXT,
        "the schema that records were written with, where no registry knows it",
        only_with=_AVRO,
        check=_is_schema,
    ),
    *AVRO_WRITING,
)


def check_avro(options: Values, reads: bool = False) -> Complaint | None:
    """What is wrong with the options of a format, together."""
    if options["format"] != "avro":
        return None
    given = [name for name in ("avro_schema", "registry_url") if options.get(name) is not None]
    if reads and len(given) != 1:
        why = "two schemas" if given else "no schema"
        return (
            f"with {why} records in Avro cannot be read",
            "say either registry_url = 'http://…' or avro_schema = '{…}'.",
        )
    named = options["registry_username"] is not None or options["registry_password"] is not None
    if named and options["registry_url"] is None:
        return "there is a login for a registry, and no registry", "add registry_url = 'http://…'."
    return None


def unwritable(options: Values, columns: Columns) -> str | None:
    """A column that Avro has no name or no type for."""
    if options["format"] != "avro":
        return None
    import pyarrow as pa

    from tidegate.connectors.kafka_avro import avro_schema
    from tidegate.physical.typed import arrow_type

    try:
        avro_schema("row", pa.schema([(name, arrow_type(kind)) for name, kind in columns]))
    except ValueError as error:
        return f"records in Avro cannot hold these columns: {error}; use format = 'json'"
    return None


def unreadable(columns: Columns) -> str | None:
    """A column whose values Avro does not have."""
    from tidegate.physical.typed import arrow_type

    for name, kind in columns:
        try:
            arrow_type(kind)
        except ValueError:
            return f"Avro has no values of the type {kind}, which {name} has"
    return None
