"""Rows as HTML, for notebooks."""

from __future__ import annotations

import html
from typing import Any


def html_table(columns: list[str], rows: list[dict[str, Any]], caption: str) -> str:
    """Rows as HTML; what is in them is text, never markup."""
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
