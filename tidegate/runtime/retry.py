"""Retries with exponential backoff."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from tidegate.errors import SystemUnavailable, TidegateError
from tidegate.spark.errors import JobFailed, pipeline_error
from tidegate.storage import StorageError

T = TypeVar("T")
# Shows an error message in the status of the pipeline; None clears it.
ReportError = Callable[[str | None], None]
# Sleeps for some seconds; returns False if the pipeline is stopping.
Wait = Callable[[float], bool]

INITIAL_DELAY_S = 0.2
MAX_DELAY_S = 60.0


def backoff_s(attempt: int) -> float:
    """Return the delay before the next attempt; `attempt` is the number of failed attempts."""
    return min(INITIAL_DELAY_S * 2.0 ** min(attempt - 1, 16), MAX_DELAY_S)


def _is_transient(error: Exception) -> bool:
    if isinstance(error, JobFailed):
        return bool(error.store_unavailable)
    return bool(getattr(error, "retryable", False))


@dataclass(frozen=True)
class RetryPolicy:
    """Which errors are retried and how often.

    Transient errors are retried until the pipeline stops. `max_attempts` limits the attempts for
    all other errors.
    """

    errors: tuple[type[Exception], ...]
    max_attempts: int = 1


STORAGE = RetryPolicy((StorageError, JobFailed))
EXTERNAL_SYSTEM = RetryPolicy((SystemUnavailable,))
PUBLISH = RetryPolicy((TidegateError,), max_attempts=4)


def retry(operation: Callable[[], T], policy: RetryPolicy, report: ReportError, wait: Wait) -> T:
    """Run `operation` and retry the errors of `policy` with exponential backoff.

    `report` shows each error that is retried in the pipeline's status, and clears it once the
    operation succeeds. If `wait` returns False, because the pipeline is stopping, the last error is
    raised.
    """
    for attempt in count(1):
        try:
            result = operation()
        except policy.errors as error:
            if attempt >= policy.max_attempts and not _is_transient(error):
                raise
            report(pipeline_error("", error).message)
            if not wait(backoff_s(attempt)):
                raise
        else:
            if attempt > 1:
                report(None)
            return result
    raise AssertionError("unreachable")
