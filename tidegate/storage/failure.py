"""What can go wrong with stored bytes: one error that says where, why and whether to try again."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.errors import TidegateError

# What passes by itself: a server that is away or busy, too many files open at the moment.
_PASSING = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.EMFILE,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENFILE,
    errno.ESTALE,
    errno.ETIMEDOUT,
}
_HINTS = {
    errno.ENOSPC: "make room on that disk, or put the data elsewhere.",
    errno.EDQUOT: "make room on that disk, or put the data elsewhere.",
    errno.EROFS: "this place is read-only; choose one that can be written.",
    errno.EACCES: "give the user that runs this the right to read and write there.",
    errno.EPERM: "give the user that runs this the right to read and write there.",
    errno.EXDEV: "both places must be on one file system.",
}


class StorageError(TidegateError):
    """Stored bytes cannot be read or written; `retryable` says whether waiting may help."""

    def __init__(
        self, uri: str, reason: str, *, retryable: bool = False, hint: str | None = None
    ) -> None:
        code = "TG-613" if retryable else "TG-608"
        super().__init__(code, f"{uri}: {reason}", hint=hint)
        self.uri = uri
        self.reason = reason
        self.retryable = retryable


class AlreadyThere(StorageError):
    """Something of that name exists, and was to be created."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri, "is already there")


class NotThere(StorageError):
    """Nothing of that name exists."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri, "is not there")


def of_os_error(error: OSError, uri: str, what: str) -> StorageError:
    """The error of the operating system as ours."""
    number = error.errno or 0
    reason = f"{what}: {error.strerror or error}"
    return StorageError(uri, reason, retryable=number in _PASSING, hint=_HINTS.get(number))


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Errors while something is read; a folder is not something that can be read."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise NotThere(uri) from None
    except OSError as error:
        raise of_os_error(error, uri, "cannot be read") from error


@contextmanager
def changing(uri: str, what: str = "cannot be written") -> Iterator[None]:
    """Errors while something is written, moved or deleted."""
    try:
        yield
    except OSError as error:
        raise of_os_error(error, uri, what) from error
