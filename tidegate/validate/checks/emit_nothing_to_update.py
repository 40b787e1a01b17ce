"""EMIT ON UPDATE and EMIT EVERY hand out rows that change; rows that never change have no key."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.plan import nodes as n
from tidegate.sql.statements import EmitMode
from tidegate.types import ChangelogKind
from tidegate.validate.finding import Finding, Subject, unbounded


def emit_nothing_to_update(subject: Subject) -> Iterable[Finding]:
    emit = subject.emit
    if emit is None or emit.mode not in (EmitMode.UPDATE, EmitMode.EVERY):
        return
    if not unbounded(subject.plan):
        return
    below = subject.plan.input
    if below.changelog is not ChangelogKind.APPEND and below.key is None:
        yield Finding(
            "TG-416",
            f"{emit.mode.value} replaces rows by key, but the result does not hold the whole key",
            subject.plan,
            _key_hint(subject),
            emit.span,
        )
    elif below.changelog is ChangelogKind.APPEND:
        yield Finding(
            "TG-416",
            f"{emit.mode.value}: the rows of this query are never updated",
            subject.plan,
            "remove the EMIT clause: rows then come out as they arrive; EMIT CHANGES adds _op to "
            "them.",
            emit.span,
        )


def _key_hint(subject: Subject) -> str:
    sets = any(isinstance(node, n.Explode) and node.of_sets for node in subject.nodes())
    also = ", and grouping_id()" if sets else ""
    return f"select every column of GROUP BY{also}, or use EMIT CHANGES, which needs no key."
