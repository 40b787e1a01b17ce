"""MATCH_RECOGNIZE on a stream needs rows that stay, and something that ends an open match."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.sql.match_recognize import text_of
from tidegate.types import ChangelogKind
from tidegate.validate.finding import Finding, Subject, unbounded


def match_unsupported(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.Match):
            continue
        if node.input.changelog is not ChangelogKind.APPEND:
            yield Finding(
                "TG-421",
                "the input of MATCH_RECOGNIZE changes rows it has already given, so a match could "
                "become none",
                node,
                "match rows that stay: those of a source, or of windows with EMIT ON WINDOW CLOSE.",
            )
        elif unbounded(node) and _waits_for_ever(node):
            yield Finding(
                "TG-420",
                f"a match of {text_of(node.pattern)} may stay open for ever, and all its rows must "
                "be remembered",
                node,
                f"say how long it may take: PATTERN ({text_of(node.pattern)}) WITHIN INTERVAL '1' "
                "HOUR; or let state expire: CREATE STREAM … WITH (state_ttl = '1 day') AS …",
            )


def _waits_for_ever(node: n.Match) -> bool:
    """Whether nothing says how many rows, or how long, an open match is kept."""
    return node.within_us is None and node.most_rows is None and node.ttl_us is None
