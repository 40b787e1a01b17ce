"""Trying again: for as long as it takes a store to be back, or a few times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from tidegate.errors import SystemUnavailable, TidegateError
from tidegate.spark.errors import JobFailed, pipeline_error
from tidegate.storage import StorageError

T = TypeVar("T")
Say = Callable[[str | None], None]


@dataclass(frozen=True)
class Retry:
    """Waits by `rest`, which is told how often something failed before; it says no if nobody wants
    to wait any more."""

    rest: Callable[[int], bool]

    def retry_storage(self, work: Callable[[], T], say: Say) -> T:
        """Do it, for as long as it takes a store to be back."""
        for attempt in count():
            try:
                done = work()
            except (StorageError, JobFailed) as error:
                away = error.away if isinstance(error, JobFailed) else error.retryable
                if not away:
                    raise
                say(pipeline_error("", error).message)
                if not self.rest(attempt):
                    raise
            else:
                if attempt:
                    say(None)
                return done
        raise AssertionError("it counts for ever")

    def retry_external(self, work: Callable[[], T], say: Say) -> T:
        """Do it anew, for as long as it takes a broker or a database to answer."""
        for attempt in count():
            try:
                done = work()
            except SystemUnavailable as error:
                say(error.message)
                if not self.rest(attempt):
                    raise
            else:
                if attempt:
                    say(None)
                return done
        raise AssertionError("it counts for ever")

    def commit(self, work: Callable[[], None], tries: int, say: Say) -> None:
        """Do it; what cannot pass is tried a few times, a sink that is away until it is back."""
        for attempt in count():
            try:
                work()
            except TidegateError as error:
                say(error.message)
                passing = getattr(error, "retryable", False)
                if (attempt + 1 >= tries and not passing) or not self.rest(attempt):
                    raise
            else:
                say(None)
                return
