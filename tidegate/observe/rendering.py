"""Values and rows as JSON and HTML."""

from __future__ import annotations

import base64
import datetime as dt
import html
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any


def json_value(value: Any) -> Any:
    """Convert a value of a row to JSON types.

    Types that JSON lacks become strings: times in ISO 8601, bytes in Base64, infinities and NaN by
    name.
    """
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, datetime | date | dt.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Decimal | timedelta):
        return str(value)
    return value


def html_table(columns: list[str], rows: list[dict[str, Any]], caption: str) -> str:
    """Render rows as an HTML table for notebooks. Values are escaped."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    cells = (
        "".join(f"<td>{html.escape(_text(row[name]))}</td>" for name in columns) for row in rows
    )
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        f"<caption>{html.escape(caption)}</caption></table>"
    )


def _text(value: Any) -> str:
    return "NULL" if value is None else str(value)
