"""Values of case files and of Arrow, brought to one form so that they can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa


def actual(value: Any) -> Any:
    """A value that came out of Arrow: times in UTC, maps as mappings."""
    if isinstance(value, datetime):
        return _utc(value)
    if isinstance(value, Mapping):
        return {name: actual(item) for name, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {actual(key): actual(item) for key, item in value}
        return [actual(item) for item in value]
    return value


def expected(value: Any, kind: pa.DataType | None) -> Any:
    """A value of a case file, read as the type of the output; what cannot be read stays."""
    if value is None or kind is None:
        return value
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [expected(item, kind.value_type) for item in value] if _is_list(value) else value
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        return _struct(value, kind)
    if pa.types.is_map(kind):
        return _expected_map(value, kind)
    try:
        return _scalar(value, kind)
    except (ValueError, ArithmeticError):
        return value


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _struct(value: Mapping[str, Any], kind: pa.DataType) -> dict[str, Any]:
    """The fields of the type in their order; a field it does not have stays and differs."""
    by_lower = {name.lower(): item for name, item in value.items()}
    known = {item.name.lower() for item in kind}
    fields = {item.name: expected(by_lower.get(item.name.lower()), item.type) for item in kind}
    return fields | {name: item for name, item in value.items() if name.lower() not in known}


def _expected_map(value: Any, kind: pa.DataType) -> Any:
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not _is_list(pairs) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        return value
    read = {expected(key, kind.key_type): expected(item, kind.item_type) for key, item in pairs}
    return read or []


def _scalar(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        return _time(value)
    if pa.types.is_date(kind):
        return date.fromisoformat(value) if isinstance(value, str) else value
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return value.isoformat() if isinstance(value, date) else value
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return value.encode() if isinstance(value, str) else value
    if isinstance(value, bool):
        return value
    if pa.types.is_decimal(kind):
        return Decimal(str(value)) if isinstance(value, str | int | float) else value
    if pa.types.is_floating(kind):
        return float(value) if isinstance(value, str | int | float) else value
    if pa.types.is_integer(kind) and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _time(value: Any) -> Any:
    """An ISO text, with or without a zone, or what YAML made of one."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return _utc(value)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value


def _utc(value: datetime) -> datetime:
    """Times without a zone are UTC; the class is datetime itself, not pandas' own."""
    at = value.astimezone(UTC) if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return datetime(
        at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond, tzinfo=UTC
    )


def show(value: Any) -> str:
    """A value for people: NULL, ISO times in UTC, texts without quotes."""
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {show(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(show(item) for item in value) + "]"
    return str(value)
