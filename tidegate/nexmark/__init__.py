"""The NEXMark queries in our dialect: q0 to q8, q11 and q12, each a whole script.

`query("q5")` is its text, `names()` lists them. The sources are generators without end; give them
`rows` to make a run finite. Loads nothing but the package's own files.
"""

from __future__ import annotations

from importlib import resources

_QUERIES = resources.files("tidegate.nexmark") / "queries"


def names() -> list[str]:
    """The queries there are, in order."""
    found = [entry.name.removesuffix(".sql") for entry in _QUERIES.iterdir()]
    return sorted((name for name in found if name.startswith("q")), key=lambda name: int(name[1:]))


def query(name: str) -> str:
    """The script of a query: its sources and one stream of the same name."""
    known = names()
    if name not in known:
        raise KeyError(f"there is no query {name}; there are {', '.join(known)}")
    return (_QUERIES / f"{name}.sql").read_text("utf-8")
