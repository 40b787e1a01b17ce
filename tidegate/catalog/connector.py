"""What a connector tells of itself without Spark: what it can be, its options, what it accepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.types import MICROS, ChangelogKind

APPEND_ONLY = frozenset({ChangelogKind.APPEND})
ANY_KIND = frozenset(ChangelogKind)

Values = Mapping[str, Any]
Columns = tuple[tuple[str, str], ...]

# Options that every source understands, whatever its connector.
SOURCE_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec("connector", OptionType.TEXT, "the connector that reads it", required=True),
    OptionSpec(
        "idle_timeout",
        OptionType.DURATION,
        "after this long without rows the source no longer holds the watermark back",
    ),
    OptionSpec(
        "max_future",
        OptionType.DURATION,
        "rows further ahead of the clock than this go to the dead letters",
        default=MICROS["day"],
        may_be_off=True,
    ),
    OptionSpec(
        "dead_letters",
        OptionType.TEXT,
        "the name of the stream that gets records which cannot be used",
    ),
    OptionSpec(
        "changelog",
        OptionType.BOOLEAN,
        "true if rows carry a column _op with +I, -U, +U or -D",
        default=False,
    ),
)
SINK_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec("connector", OptionType.TEXT, "the connector that writes it", required=True),
)
LOOKUP_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec("connector", OptionType.TEXT, "the connector that is asked", required=True),
    OptionSpec(
        "cache_rows",
        OptionType.INTEGER,
        "rows that each worker keeps of a table that is asked (postgres)",
        100_000,
        minimum=0,
    ),
    OptionSpec(
        "cache_ttl",
        OptionType.DURATION,
        "how long it uses such a row, and knows that there is none",
        600_000_000,
    ),
    OptionSpec(
        "async_capacity",
        OptionType.INTEGER,
        "questions that a worker has under way at once, each for 1,000 keys",
        16,
        minimum=1,
    ),
)


# What is wrong with options together, and what to do about it.
Complaint = tuple[str, str | None]


def _never(_: Values) -> bool:
    return False


@dataclass(frozen=True)
class SourceSpec:
    """A connector as a source."""

    options: tuple[OptionSpec, ...]
    bounded: Callable[[Values], bool] = _never
    # Whether it makes rows forever, so that "until the end" has no meaning.
    unbounded_by_options: Callable[[Values], bool] = _never
    columns: Callable[[Values], tuple[tuple[str, str], ...]] | None = None
    insertable: bool = False
    check: Callable[[Values], Complaint | None] | None = None
    # What it tells of a record besides its content, and the types that a column of it can have.
    metadata: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Whether rows of a source with these options and a PRIMARY KEY say in _op what they do, though
    # nobody declared a changelog.
    implies_changelog: Callable[[Values, bool], bool] = lambda _, __: False
    # What is wrong with columns of these names and types.
    check_columns: Callable[[Values, Columns, bool], Complaint | None] | None = None
    # Whether its partitions have watermarks of their own.
    partitioned: bool = False
    # The options that say which rows it has: with other values, old offsets mean nothing.
    identity: tuple[str, ...] = ()
    built: bool = True


@dataclass(frozen=True)
class SinkSpec:
    """A connector as a sink; `accepts` says which streams it can take."""

    options: tuple[OptionSpec, ...]
    accepts: Callable[[Values], frozenset[ChangelogKind]] = field(default=lambda _: ANY_KIND)
    changelog_hint: str | None = None
    check: Callable[[Values], Complaint | None] | None = None
    # The options that say where it writes, if only one sink may write there.
    exclusive: tuple[str, ...] = ()
    # Whether a source of the same connector reads what a sink writes, by the options of both.
    is_read_by: Callable[[Values, Values], bool] = lambda _, __: False
    # What is wrong with writing columns of these names and types, once Spark has told them.
    check_columns: Callable[[Values, Columns], str | None] | None = None
    # Whether it must know which row a row replaces or retracts.
    needs_key: bool = False
    # Whether rows that were given to it can be as if they had never been.
    supports_rollback: bool = False
    built: bool = True


@dataclass(frozen=True)
class LookupSpec:
    """A connector as a lookup table."""

    options: tuple[OptionSpec, ...]
    insertable: bool = False
    check: Callable[[Values], Complaint | None] | None = None
    # Whether all who ask in one epoch find the same.
    consistent_in_epoch: bool = True
    built: bool = True


@dataclass(frozen=True)
class ConnectorSpec:
    """A connector: its name and the roles it can play."""

    name: str
    description: str
    source: SourceSpec | None = None
    sink: SinkSpec | None = None
    lookup: LookupSpec | None = None

    def __post_init__(self) -> None:
        assert self.source or self.sink or self.lookup, f"{self.name} can do nothing"


Connectors = Mapping[str, ConnectorSpec]


def secret_options(connectors: Connectors) -> frozenset[str]:
    """The names of all options whose values are never shown."""
    roles = (role for spec in connectors.values() for role in (spec.source, spec.sink, spec.lookup))
    options = (option for role in roles if role is not None for option in role.options)
    return frozenset(option.name.lower() for option in options if option.secret)
