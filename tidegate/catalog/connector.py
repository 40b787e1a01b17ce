"""Descriptions of connectors without Spark: their roles, options and capabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.types import MICROS, ChangelogKind

APPEND_ONLY = frozenset({ChangelogKind.APPEND})
ANY_KIND = frozenset(ChangelogKind)

OptionValues = Mapping[str, Any]
ColumnTypes = tuple[tuple[str, str], ...]

# Options of every source, in addition to those of its connector.
SOURCE_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec("connector", OptionType.TEXT, "name of the connector", required=True),
    OptionSpec(
        "idle_timeout",
        OptionType.DURATION,
        "time without rows after which the source, or a partition of it, no longer holds back "
        "the watermark; default: never; needs a WATERMARK",
    ),
    OptionSpec(
        "max_future",
        OptionType.DURATION,
        "how far event times may be ahead of the clock; rows beyond it become dead letters; "
        "needs a WATERMARK",
        default=MICROS["day"],
        may_be_off=True,
    ),
    OptionSpec(
        "dead_letters",
        OptionType.TEXT,
        "name of the stream of malformed records; default: they are only counted",
    ),
    OptionSpec(
        "changelog",
        OptionType.BOOLEAN,
        "true if rows have a column _op with +I, -U, +U or -D",
        default=False,
    ),
)
SINK_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec("connector", OptionType.TEXT, "name of the connector", required=True),
)
LOOKUP_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec("connector", OptionType.TEXT, "name of the connector", required=True),
    OptionSpec(
        "cache_rows",
        OptionType.INTEGER,
        "maximum number of rows in the cache of a worker (postgres)",
        100_000,
        minimum=0,
    ),
    OptionSpec(
        "cache_ttl",
        OptionType.DURATION,
        "how long rows and missing keys stay in the cache (postgres)",
        600_000_000,
    ),
    OptionSpec(
        "async_capacity",
        OptionType.INTEGER,
        "maximum number of concurrent queries of a worker, each for up to 1,000 keys (postgres)",
        16,
        minimum=1,
    ),
)


# A message about invalid options, and a hint.
OptionProblem = tuple[str, str | None]


def _never(_: OptionValues) -> bool:
    return False


@dataclass(frozen=True)
class SourceSpec:
    """A connector as a source."""

    options: tuple[OptionSpec, ...]
    is_bounded: Callable[[OptionValues], bool] = _never
    # True if the source produces rows forever, so that `--until-end` is rejected.
    never_ends: Callable[[OptionValues], bool] = _never
    columns: Callable[[OptionValues], ColumnTypes] | None = None
    insertable: bool = False
    check: Callable[[OptionValues], OptionProblem | None] | None = None
    # Metadata fields of a record, with the types that their columns may have.
    metadata: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # True if rows of a source with these options (and a PRIMARY KEY or not) have a column _op
    # without the option `changelog`.
    implies_changelog: Callable[[OptionValues, bool], bool] = lambda _, __: False
    # Returns a problem of columns with these names and types.
    check_columns: Callable[[OptionValues, ColumnTypes, bool], OptionProblem | None] | None = None
    # True if each partition has its own watermark.
    partitioned: bool = False
    # Options that identify the data: if one changes, stored offsets are invalid.
    identity_options: tuple[str, ...] = ()


@dataclass(frozen=True)
class SinkSpec:
    """A connector as a sink; `accepts` returns the changelog kinds that it can write."""

    options: tuple[OptionSpec, ...]
    accepts: Callable[[OptionValues], frozenset[ChangelogKind]] = field(default=lambda _: ANY_KIND)
    changelog_hint: str | None = None
    check: Callable[[OptionValues], OptionProblem | None] | None = None
    # Options that identify the target, if only one sink may write to it.
    exclusive_options: tuple[str, ...] = ()
    # Returns True if a source of the same connector reads what the sink writes.
    is_read_by: Callable[[OptionValues, OptionValues], bool] = lambda _, __: False
    # Returns a message if columns with these names and Spark types cannot be written.
    check_columns: Callable[[OptionValues, ColumnTypes], str | None] | None = None
    # True if the sink needs a key to identify the row that is replaced or retracted.
    needs_key: bool = False
    # True if a restore leaves no duplicates: committed rows can be rolled back, or are not stored.
    tolerates_restore: bool = False


@dataclass(frozen=True)
class LookupSpec:
    """A connector as a lookup table."""

    options: tuple[OptionSpec, ...]
    insertable: bool = False
    check: Callable[[OptionValues], OptionProblem | None] | None = None
    # True if all lookups of an epoch see the same rows.
    consistent_in_epoch: bool = True


@dataclass(frozen=True)
class ConnectorSpec:
    """A connector: its name and its roles."""

    name: str
    description: str
    source: SourceSpec | None = None
    sink: SinkSpec | None = None
    lookup: LookupSpec | None = None

    def __post_init__(self) -> None:
        assert self.source or self.sink or self.lookup, f"{self.name} has no role"


Connectors = Mapping[str, ConnectorSpec]


def secret_options(connectors: Connectors) -> frozenset[str]:
    """Return the names of all options whose values are secret."""
    roles = (role for spec in connectors.values() for role in (spec.source, spec.sink, spec.lookup))
    options = (option for role in roles if role is not None for option in role.options)
    return frozenset(option.name.lower() for option in options if option.secret)
