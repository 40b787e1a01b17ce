"""Values of rows as JSON."""

from __future__ import annotations

import base64
import datetime as dt
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any


def json_value(value: Any) -> Any:
    """A value of a row as JSON has it; what JSON has no word for is a text."""
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
