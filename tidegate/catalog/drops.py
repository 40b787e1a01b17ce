"""DROP against what is declared: what depends on a thing keeps it."""

from __future__ import annotations

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Declared, SideStream
from tidegate.errors import did_you_mean
from tidegate.sql import statements as st

# A code, a message and a hint.
Reason = tuple[str, str, str]


def drop_refusal(statement: st.Drop, declared: Declared | None, catalog: Catalog) -> Reason | None:
    """Why a thing cannot be dropped."""
    if declared is None:
        hint = did_you_mean(statement.name, catalog.names(), "names")
        return "TG-201", f"nothing is named {statement.name}", hint
    if declared.kind is not statement.kind:
        message = f"{declared.name} is a {declared.kind.value.lower()}"
        return "TG-201", message, f"DROP {declared.kind.value} {declared.name};"
    if isinstance(declared, SideStream):
        message = (
            f"{declared.name} goes with {declared.parent}: it holds its {declared.holds.value}"
        )
        return "TG-204", message, f"drop {declared.parent}."
    readers = catalog.dependents(declared.name)
    if readers:
        names = ", ".join(f"{item.kind.value.lower()} {item.name}" for item in readers)
        message = f"{declared.name} cannot be dropped while others depend on it: {names}"
        first = readers[0]
        return "TG-204", message, f"DROP {first.kind.value} {first.name}; first."
    return None
