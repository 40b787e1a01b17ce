"""Errors of object stores as ours: short, without secrets, and whether waiting may help."""

from __future__ import annotations

import re
from collections.abc import Iterable

import obstore.exceptions as theirs

from tidegate.storage.failure import AlreadyThere, NotThere, StorageError

_STATUS = re.compile(r"status code: (\d{3}) ?([A-Za-z ]*)")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_NETWORK = re.compile(r"HTTP error: (.*)")
# Answers that say: not now.
_PASSING = (408, 409, 425, 429)
_FORBIDDEN = (PermissionError, theirs.PermissionDeniedError, theirs.UnauthenticatedError)
_NEVER = (
    ValueError,
    theirs.InvalidPathError,
    theirs.NotSupportedError,
    theirs.UnknownConfigurationKeyError,
)


def of_store_error(error: Exception, uri: str, what: str, secrets: Iterable[str]) -> StorageError:
    """The error of an object store as ours."""
    # What follows is for the authors of the client, and shows all that it knows.
    text = str(error).partition("\n\nDebug source")[0]
    if "NoSuchBucket" in text:
        reason = f"{what}: there is no such bucket"
        return StorageError(uri, reason, hint="create the bucket, or correct the URI.")
    if isinstance(error, (FileNotFoundError, theirs.NotFoundError)):
        return NotThere(uri)
    if isinstance(error, (FileExistsError, theirs.AlreadyExistsError)):
        return AlreadyThere(uri)
    forbidden = isinstance(error, _FORBIDDEN)
    passing = not forbidden and not isinstance(error, _NEVER) and _passes(text)
    hint = "check the credentials (options, or AWS_… in the environment)." if forbidden else None
    reason = f"{what}: {_hidden(_reason(text), secrets)}"
    return StorageError(uri, reason, retryable=passing, hint=hint)


def _passes(text: str) -> bool:
    """Whether the same request may succeed later: without an answer, or with one that says so."""
    status = _STATUS.search(text)
    return status is None or int(status[1]) >= 500 or int(status[1]) in _PASSING


def _reason(text: str) -> str:
    """What the server said, or that nobody answered."""
    code, message, status = _CODE.search(text), _MESSAGE.search(text), _STATUS.search(text)
    if code is not None:
        return f"{code[1]}: {message[1]}" if message is not None else code[1]
    if status is not None:
        return f"the server answered {status[1]} {status[2].strip()}".rstrip()
    network = _NETWORK.search(text)
    if network is not None:
        return f"the server does not answer ({network[1].strip()})"
    return text.partition("\n")[0]


def _hidden(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
