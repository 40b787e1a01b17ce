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
from tidegate.testing.case import Mark, Row


class CaseError(TidegateError):
    """A case file that cannot be understood."""

    def __init__(self, file: Path, field: str, message: str, hint: str | None = None) -> None:
        place = f"{file}: {field}: " if field else f"{file}: "
        super().__init__("TG-701", place + message, hint=hint)
        self.file = file
        self.field = field


@dataclass(frozen=True)
class CaseFields:
    """A mapping of a file and where in the file it stands."""

    file: Path
    where: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, file: Path, where: str, raw: object, field_names: Iterable[str]) -> CaseFields:
        """The mapping, once every one of its fields is known."""
        names = tuple(field_names)
        if not isinstance(raw, Mapping):
            raise CaseError(file, where, f"expected a mapping, found {shown(raw)}")
        for name in raw:
            if name not in names:
                hint = did_you_mean(str(name), names, "fields")
                raise CaseError(file, _join(where, str(name)), "unknown field", hint)
        return cls(file, where, raw)

    def error(self, name: str, message: str, hint: str | None = None) -> CaseError:
        return CaseError(self.file, _join(self.where, name), message, hint)

    def has(self, name: str) -> bool:
        """Whether a field is there; null means it is not."""
        return self.values.get(name) is not None

    def exactly_one(self, *names: str) -> str:
        """The one of these fields that is given."""
        present = [name for name in names if self.has(name)]
        if len(present) == 1:
            return present[0]
        options = " or ".join(names)
        actual = "both " + " and ".join(present) if present else "neither"
        raise CaseError(self.file, self.where, f"expected {options}, found {actual}")

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str) or not value.strip():
            raise self.error(name, f"expected a text, found {shown(value)}")
        return value

    def text_or_none(self, name: str) -> str | None:
        return self.text(name) if self.has(name) else None

    def whole(self, name: str, default: int = 0) -> int:
        """A whole number from zero up."""
        if not self.has(name):
            return default
        value = self.values[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.error(name, f"expected a whole number from 0 up, found {shown(value)}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        if not self.has(name):
            return default
        value = self.values[name]
        if not isinstance(value, bool):
            raise self.error(name, f"expected true or false, found {shown(value)}")
        return value

    def choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str | None:
        if not self.has(name):
            return default
        value = self.values[name]
        if value not in choices:
            hint = did_you_mean(str(value), choices, "choices")
            raise self.error(name, f"expected {' | '.join(choices)}, found {shown(value)}", hint)
        return str(value)

    def sequence(self, name: str) -> list[Any]:
        value = self.values.get(name)
        if not isinstance(value, list):
            raise self.error(name, f"expected a list, found {shown(value)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        if not self.has(name):
            return ()
        values = self.sequence(name)
        if not all(isinstance(value, str) for value in values):
            raise self.error(name, "expected a list of texts")
        return tuple(values)

    def rows(self, name: str) -> tuple[Row, ...]:
        return as_rows(self.file, _join(self.where, name), self.values.get(name))


def as_rows(file: Path, where: str, raw: object) -> tuple[Row, ...]:
    """A list of mappings from column to value."""
    if not isinstance(raw, list):
        raise CaseError(file, where, f"expected a list of rows, found {shown(raw)}")
    for index, row in enumerate(raw):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise CaseError(
                file, f"{where}[{index}]", f"expected a row {{column: value}}, found {shown(row)}"
            )
    return tuple(raw)


def _join(where: str, name: str) -> str:
    return ".".join(part for part in (where, name) if part)


def shown(value: object) -> str:
    """A value in a message: what it is, and how it begins."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = value.isoformat() if isinstance(value, dt.date) else json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:39] + "…"


def read_document(file: Path) -> object:
    """The one document of a JSON or YAML file; a field given twice is rejected."""
    try:
        text = file.read_text("utf-8")
        if file.suffix == ".json":
            return json.loads(text, object_pairs_hook=lambda pairs: _unique(file, pairs))
        return yaml.load(text, _UniqueLoader)  # a safe loader
    except OSError as error:
        raise CaseError(file, "", f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise CaseError(file, "", "is not a text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise CaseError(file, f"line {error.lineno}", f"is not JSON: {error.msg}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise CaseError(file, line, f"is not YAML: {problem}") from None


def read_json_lines(file: Path) -> list[Row]:
    """One row per line."""
    rows: list[Row] = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise CaseError(file, f"line {number}", f"is not JSON: {error.msg}") from None
        if not isinstance(row, dict):
            raise CaseError(file, f"line {number}", f"expected a row, found {shown(row)}")
        rows.append(row)
    return rows


def _unique(file: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise CaseError(file, twice, "is given twice")
    return mapping


def _construct_mapping(loader: Any, node: Any, deep: bool = False) -> Any:
    """Reject duplicate keys: PyYAML silently keeps the last one, so a step would be lost."""
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key.value, str) and key.value in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"{key.value} is given twice", key.start_mark
            )
        seen |= {key.value} if isinstance(key.value, str) else set()
    return yaml.SafeLoader.construct_mapping(loader, node, deep)


_UniqueLoader: Any = type(
    "_UniqueLoader", (yaml.SafeLoader,), {"construct_mapping": _construct_mapping}
)


# ---- Explicit watermarks: after row i of a source its watermark is w.
#
# Tidegate has no statement that sets a watermark. So a source with explicit watermarks gets a delay
# so long that its rows never move the watermark, and a hidden row, which the query does not see,
# whose event time is w plus that delay.

MARK_COLUMN = "_mark"
# Longer than the span of any data, short enough that w plus it is still a timestamp.
LONG_DELAY_MS = 100 * 365 * 24 * 3600 * 1000
# Watermarks such as Flink's largest long mean the end of time.
_LAST_MS = int(datetime(9000, 1, 1, tzinfo=UTC).timestamp() * 1000)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_marks(item: CaseFields, time_column: str | None) -> tuple[Mark, ...]:
    """Read a list of {row_index, watermark}; a watermark is a time or milliseconds."""
    if not item.has("explicit_watermarks"):
        return ()
    if time_column is None:
        raise item.error("explicit_watermarks", "expected a time_column beside them")
    entries = item.sequence("explicit_watermarks")
    marks = [_mark(item, position, entry) for position, entry in enumerate(entries)]
    return tuple(sorted(marks, key=lambda mark: mark.row_index))


def _mark(item: CaseFields, position: int, entry: object) -> Mark:
    where = f"explicit_watermarks[{position}]"
    fields = CaseFields.of(item.file, f"{item.where}.{where}", entry, ("row_index", "watermark"))
    index, value = fields.values.get("row_index"), fields.values.get("watermark")
    if not isinstance(index, int) or isinstance(index, bool):
        raise fields.error("row_index", f"expected a whole number, found {shown(index)}")
    at = _milliseconds(value)
    if at is None:
        raise fields.error("watermark", f"expected a time or milliseconds, found {shown(value)}")
    return Mark(index, min(at, _LAST_MS))


def _milliseconds(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        at = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (at - _EPOCH) // timedelta(milliseconds=1)
    if isinstance(value, date):
        return (datetime(value.year, value.month, value.day, tzinfo=UTC) - _EPOCH) // timedelta(
            milliseconds=1
        )
    return None


def marked_row(time_column: str, mark: Mark) -> Row:
    """The hidden row that moves the watermark."""
    at = _EPOCH + timedelta(milliseconds=mark.watermark_ms + LONG_DELAY_MS)
    return {time_column: at, MARK_COLUMN: True}
