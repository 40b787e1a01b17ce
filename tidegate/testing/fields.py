"""Strict access to a mapping of a case file: check types and reject unknown fields."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from tidegate.errors import TidegateError, did_you_mean
from tidegate.testing.case import ExplicitWatermark, Row


class CaseError(TidegateError):
    """An invalid case file."""

    def __init__(self, file: Path, field: str, message: str, hint: str | None = None) -> None:
        prefix = f"{file}: {field}: " if field else f"{file}: "
        super().__init__("TG-701", prefix + message, hint=hint)
        self.file = file
        self.field = field


@dataclass(frozen=True)
class CaseFields:
    """A mapping in a case file, and its location in the file, such as `sources[0]`."""

    file: Path
    location: str
    values: Mapping[str, Any]

    @classmethod
    def from_value(
        cls, file: Path, location: str, raw: object, field_names: Iterable[str]
    ) -> CaseFields:
        """Check that a value is a mapping without unknown fields."""
        names = tuple(field_names)
        if not isinstance(raw, Mapping):
            raise CaseError(file, location, f"expected a mapping, found {describe(raw)}")
        for name in raw:
            if name not in names:
                hint = did_you_mean(str(name), names, "fields")
                raise CaseError(file, _join(location, str(name)), "unknown field", hint)
        return cls(file, location, raw)

    def error(self, name: str, message: str, hint: str | None = None) -> CaseError:
        return CaseError(self.file, _join(self.location, name), message, hint)

    def has(self, name: str) -> bool:
        """Return whether a field is present and not null."""
        return self.values.get(name) is not None

    def exactly_one(self, *names: str) -> str:
        """Return the only one of these fields that is present."""
        present = [name for name in names if self.has(name)]
        if len(present) == 1:
            return present[0]
        options = " or ".join(names)
        names_found = "both " + " and ".join(present) if present else "neither"
        raise CaseError(self.file, self.location, f"expected {options}, found {names_found}")

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str) or not value.strip():
            raise self.error(name, f"expected a string, found {describe(value)}")
        return value

    def text_or_none(self, name: str) -> str | None:
        return self.text(name) if self.has(name) else None

    def non_negative_integer(self, name: str, default: int = 0) -> int:
        """Return a field that is an integer from 0, or the default if it is missing."""
        if not self.has(name):
            return default
        value = self.values[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.error(name, f"expected a non-negative integer, found {describe(value)}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        if not self.has(name):
            return default
        value = self.values[name]
        if not isinstance(value, bool):
            raise self.error(name, f"expected true or false, found {describe(value)}")
        return value

    def choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str | None:
        if not self.has(name):
            return default
        value = self.values[name]
        if value not in choices:
            hint = did_you_mean(str(value), choices, "choices")
            raise self.error(name, f"expected {' | '.join(choices)}, found {describe(value)}", hint)
        return str(value)

    def sequence(self, name: str) -> list[Any]:
        value = self.values.get(name)
        if not isinstance(value, list):
            raise self.error(name, f"expected a list, found {describe(value)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        if not self.has(name):
            return ()
        values = self.sequence(name)
        if not all(isinstance(value, str) for value in values):
            raise self.error(name, "expected a list of strings")
        return tuple(values)

    def rows(self, name: str) -> tuple[Row, ...]:
        return as_rows(self.file, _join(self.location, name), self.values.get(name))


def as_rows(file: Path, location: str, raw: object) -> tuple[Row, ...]:
    """Check that a value is a list of mappings from column to value."""
    if not isinstance(raw, list):
        raise CaseError(file, location, f"expected a list of rows, found {describe(raw)}")
    for index, row in enumerate(raw):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise CaseError(
                file,
                f"{location}[{index}]",
                f"expected a row {{column: value}}, found {describe(row)}",
            )
    return tuple(raw)


def _join(location: str, name: str) -> str:
    return ".".join(part for part in (location, name) if part)


def describe(value: object) -> str:
    """Describe a value in a message by its kind, or by its first characters if it is a scalar."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = value.isoformat() if isinstance(value, dt.date) else json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:39] + "…"


def read_document(file: Path) -> object:
    """Read a JSON or YAML file with one document. Duplicate fields are rejected."""
    try:
        text = file.read_text("utf-8")
        if file.suffix == ".json":
            return json.loads(text, object_pairs_hook=lambda pairs: _reject_duplicates(file, pairs))
        return yaml.load(text, _UniqueLoader)  # a safe loader
    except OSError as error:
        raise CaseError(file, "", f"cannot read the file: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise CaseError(file, "", "the file is not valid UTF-8") from None
    except json.JSONDecodeError as error:
        raise CaseError(file, f"line {error.lineno}", f"invalid JSON: {error.msg}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise CaseError(file, line, f"invalid YAML: {problem}") from None


def read_json_lines(file: Path) -> list[Row]:
    """Read a file with one JSON row per line."""
    rows: list[Row] = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise CaseError(file, f"line {number}", f"invalid JSON: {error.msg}") from None
        if not isinstance(row, dict):
            raise CaseError(file, f"line {number}", f"expected a row, found {describe(row)}")
        rows.append(row)
    return rows


def _reject_duplicates(file: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise CaseError(file, duplicate, "duplicate field")
    return mapping


def _construct_mapping(loader: Any, node: Any, deep: bool = False) -> Any:
    """Reject duplicate keys: PyYAML silently keeps the last one, so a step would be lost."""
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key.value, str) and key.value in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"duplicate field {key.value}", key.start_mark
            )
        seen |= {key.value} if isinstance(key.value, str) else set()
    return yaml.SafeLoader.construct_mapping(loader, node, deep)


_UniqueLoader: Any = type(
    "_UniqueLoader", (yaml.SafeLoader,), {"construct_mapping": _construct_mapping}
)


# ---- Explicit watermarks: after row i of a source its watermark is w.
#
# Tidegate has no statement that sets a watermark. Therefore the watermark delay of such a source is
# so long that its rows never advance the watermark. Hidden rows, which the query does not read,
# advance it: their event time is w plus that delay.

WATERMARK_COLUMN = "_is_watermark"
# Longer than any data, but w plus this delay is still a valid timestamp.
LONG_DELAY_MS = 100 * 365 * 24 * 3600 * 1000
# Limits watermarks such as Long.MAX_VALUE, with which Flink marks the end of input.
_MAX_WATERMARK_MS = int(datetime(9000, 1, 1, tzinfo=UTC).timestamp() * 1000)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_explicit_watermarks(
    item: CaseFields, time_column: str | None
) -> tuple[ExplicitWatermark, ...]:
    """Read a list of {row_index, watermark}; a watermark is a time or milliseconds."""
    if not item.has("explicit_watermarks"):
        return ()
    if time_column is None:
        raise item.error("explicit_watermarks", "requires time_column")
    entries = item.sequence("explicit_watermarks")
    watermarks = [_explicit_watermark(item, number, entry) for number, entry in enumerate(entries)]
    return tuple(sorted(watermarks, key=lambda watermark: watermark.row_index))


def _explicit_watermark(item: CaseFields, number: int, entry: object) -> ExplicitWatermark:
    location = f"explicit_watermarks[{number}]"
    fields = CaseFields.from_value(
        item.file, f"{item.location}.{location}", entry, ("row_index", "watermark")
    )
    index, value = fields.values.get("row_index"), fields.values.get("watermark")
    if not isinstance(index, int) or isinstance(index, bool):
        raise fields.error("row_index", f"expected an integer, found {describe(index)}")
    watermark_ms = _milliseconds(value)
    if watermark_ms is None:
        raise fields.error("watermark", f"expected a time or milliseconds, found {describe(value)}")
    return ExplicitWatermark(index, min(watermark_ms, _MAX_WATERMARK_MS))


def _milliseconds(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        utc = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (utc - _EPOCH) // timedelta(milliseconds=1)
    if isinstance(value, date):
        midnight = datetime(value.year, value.month, value.day, tzinfo=UTC)
        return (midnight - _EPOCH) // timedelta(milliseconds=1)
    return None


def watermark_row(time_column: str, watermark: ExplicitWatermark) -> Row:
    """Return the hidden row that advances the watermark."""
    event_time = _EPOCH + timedelta(milliseconds=watermark.watermark_ms + LONG_DELAY_MS)
    return {time_column: event_time, WATERMARK_COLUMN: True}
