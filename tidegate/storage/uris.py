"""Locations as users write them (a path, `~`, a URI), normalized to a URI with a scheme.

A `file:` URI is percent-encoded, as the standard requires. The URI of an object store is kept as
written, because tools for object stores do not encode keys.
"""

from __future__ import annotations

import os
import re
from urllib.parse import quote_from_bytes, unquote_to_bytes

from tidegate.errors import RunError, did_you_mean

# Accepted schemes and the scheme that each is normalized to.
SCHEMES = {
    "file": "file",
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "az": "az",
    "abfs": "abfss",
    "abfss": "abfss",
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def uri(location: str | os.PathLike[str], folder: str = "") -> str:
    """Return a location as an absolute URI without a trailing slash.

    The result is canonical: equal locations have equal URIs. A relative path is resolved against
    `folder`, by default the current directory.
    """
    text = os.fspath(location)
    if not text or "\0" in text:
        hint = "write a path, or a URI such as s3://bucket/folder."
        raise _rejected(text, "is not a valid path", hint)
    match = _SCHEME.match(text)
    if match is None and not text.startswith("file:"):
        return from_path(os.path.join(folder, os.path.expanduser(text)))
    scheme = SCHEMES.get(text.partition(":")[0].lower())
    if scheme is None:
        raise _unknown_scheme(text)
    if scheme == "file":
        return from_path(_decoded(_file_path(text)))
    return _object_uri(scheme, text)


def from_path(path: str) -> str:
    """Convert a path of this machine to a `file:` URI."""
    # Without symbolic links a/../b is b; with links only the file system can resolve it.
    parts = path.split("/")
    absolute = os.path.realpath(path) if ".." in parts else os.path.abspath(path)
    return "file:///" + quote_from_bytes(os.fsencode(absolute.lstrip("/")), safe="/~=,:@+")


def to_path(file_uri: str) -> str:
    """Convert a `file:` URI that `uri` returned to a path."""
    assert file_uri.startswith("file:///"), f"{file_uri} is not a file: URI"
    return _decoded(file_uri.removeprefix("file://"))


def bucket_and_key(object_uri: str) -> tuple[str, str]:
    """Split the URI of an object store into its authority (bucket, container@account) and key."""
    authority, _, key = object_uri.partition("://")[2].partition("/")
    return authority, key


def to_spark_uri(location: str) -> str:
    """Convert a URI to the form that Hadoop reads: its scheme (s3a), without percent-encoding.

    Callers that pass it to a reader of glob patterns must escape `[`, `{` and `*`.
    """
    if location.startswith("file:"):
        return "file://" + to_path(location)
    if location.startswith("s3://"):
        return "s3a" + location.removeprefix("s3")
    return location


def _decoded(text: str) -> str:
    return os.fsdecode(unquote_to_bytes(os.fsencode(text)))


def _file_path(text: str) -> str:
    """Return the path of a `file:` URI as written, still percent-encoded."""
    rest = text.partition(":")[2]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost") or not slash:
            hint = "file: URIs have three slashes: file:///folder/file."
            raise _rejected(text, "names another machine", hint)
        return "/" + path
    if not rest.startswith("/"):
        raise _rejected(text, "is a relative URI", "write the path alone, without file:.")
    return rest


def _object_uri(scheme: str, text: str) -> str:
    rest = text.partition(":")[2]
    authority, _, key = rest.removeprefix("//").partition("/")
    if not rest.startswith("//") or not authority:
        raise _rejected(text, "names no bucket", f"write {scheme}://bucket/folder.")
    if ":" in authority or ("@" in authority and scheme != "abfss"):
        hint = "give credentials as options or in the environment, not in the URI."
        raise RunError("TG-530", f"a URI of {scheme} has a user or a port in it", hint=hint)
    key = key.rstrip("/")
    if key and any(part in ("", ".", "..") for part in key.split("/")):
        hint = "keys with //, /./ or /../ in them cannot be used."
        raise _rejected(text, "is not a valid object key", hint)
    return f"{scheme}://{authority}/{key}" if key else f"{scheme}://{authority}"


def _rejected(text: str, reason: str, hint: str) -> RunError:
    return RunError("TG-530", f"{text!r} {reason}", hint=hint)


def _unknown_scheme(text: str) -> RunError:
    scheme = text.partition(":")[0]
    suggestion = did_you_mean(scheme, SCHEMES, "schemes")
    return RunError(
        "TG-530",
        f"{scheme}: is not a scheme that Tidegate can read or write",
        hint="a local path needs no scheme (start it with ./ if it contains a colon); "
        f"{suggestion}",
    )
