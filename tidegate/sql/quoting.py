"""Quoting of SQL identifiers. Tasks import this module, so it must not import the parser."""

from __future__ import annotations


def quote_identifier(name: str) -> str:
    """Quote a name with backticks."""
    return "`" + name.replace("`", "``") + "`"
