"""Sessions whose output is written like the expected rows of a conformance case."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.testing.runner import OpenSession, SessionLike


def folding_spaces(open_session: OpenSession) -> OpenSession:
    """Open sessions whose subscriptions return one space for each run of spaces."""

    def open_folding(path: Path) -> SessionLike:
        session: Any = _FoldingSession(open_session(path))
        return session  # type: ignore[no-any-return]

    return open_folding


def fold_spaces(table: pa.Table) -> pa.Table:
    """Replace each run of spaces in a column of strings by one space."""
    for index, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            folded = pc.replace_substring_regex(table.column(index), " +", " ")
            table = table.set_column(index, field, folded)
    return table


class _FoldingSession:
    """Forwards everything except subscriptions to the session."""

    def __init__(self, session: SessionLike) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def subscribe(self, stream: str, from_epoch: int | None = None) -> _FoldingSubscription:
        return _FoldingSubscription(self._session.subscribe(stream, from_epoch))


@dataclass(frozen=True)
class _FoldedBatch:
    epoch: int
    table: pa.Table


class _FoldingSubscription:
    def __init__(self, subscription: Any) -> None:
        self._subscription = subscription

    def take_all(self) -> list[_FoldedBatch]:
        batches = self._subscription.take_all()
        return [_FoldedBatch(batch.epoch, fold_spaces(batch.table)) for batch in batches]
