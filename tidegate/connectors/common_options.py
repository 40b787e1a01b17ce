"""Options that several connectors share."""

from __future__ import annotations

from tidegate.catalog.options import OptionSpec, OptionType

CSV = ("format", ("csv",))
# The letters of Spark's datetime patterns. Text in single quotes is literal.
_PATTERN_LETTERS = frozenset("GyMLdDQqEFahHKkmsSVzOXx")


def _one_character(value: str) -> str | None:
    return None if len(value) == 1 else f"{value!r} is not one character"


def not_empty(value: str) -> str | None:
    return None if value else "it is empty"


def _time_pattern(value: str) -> str | None:
    """Return what is wrong with a datetime pattern of Spark, or None."""
    letters = {c for part in value.split("'")[::2] for c in part if c.isalpha()}
    unknown = sorted(letters - _PATTERN_LETTERS)
    if "%" in value or unknown or not letters:
        wrong = "%" if "%" in value else unknown[0] if unknown else value
        return f"{wrong!r} is not part of a pattern such as yyyy-MM-dd HH:mm:ss"
    return None


DELIMITER = OptionSpec(
    "delimiter",
    OptionType.TEXT,
    "separator between values",
    default=",",
    only_with=CSV,
    check=not_empty,
)
CSV_READING = (
    OptionSpec(
        "null_value",
        OptionType.TEXT,
        "string that represents NULL, in addition to an empty value",
        only_with=CSV,
    ),
    OptionSpec(
        "quote",
        OptionType.TEXT,
        "quote character",
        default='"',
        only_with=CSV,
        example="'\"'",
        check=_one_character,
        may_be_off=True,
    ),
    OptionSpec(
        "escape",
        OptionType.TEXT,
        "escape character for quotes inside quoted values",
        default='"',
        only_with=CSV,
        example="'\"'",
        check=_one_character,
    ),
)
EXISTING = OptionSpec(
    "existing",
    OptionType.TEXT,
    "action if the target already holds rows of this sink, from another data directory or from "
    "before on_change = 'restart': reject the run, or append to them",
    default="reject",
    choices=("reject", "append"),
)


def timestamp_format(only_with: tuple[str, tuple[str, ...]]) -> OptionSpec:
    """Return the option `timestamp_format`, which is valid with these values of another option."""
    return OptionSpec(
        "timestamp_format",
        OptionType.TEXT,
        "pattern of all timestamps, such as dd.MM.yyyy HH:mm:ss; default: ISO 8601",
        only_with=only_with,
        example="'dd.MM.yyyy HH:mm:ss'",
        check=_time_pattern,
    )
