"""What people write for a place (a path, `~`, a URI) as one URI with a scheme.

A `file:` URI is percent-encoded, as the standard has it. The URI of an object store is taken as
it is written, because that is what every tool for object stores does with keys.
"""

from __future__ import annotations

import os
import re
from urllib.parse import quote_from_bytes, unquote_to_bytes

from tidegate.errors import RunError, did_you_mean

# Each scheme with the name that it has here.
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


def uri(place: str | os.PathLike[str], folder: str = "") -> str:
    """The place as an absolute URI without a slash at its end; the same place, the same text.

    A relative path is one below `folder`, or below the current directory.
    """
    text = os.fspath(place)
    if not text or "\0" in text:
        raise _rejected(text, "is no path", "write a path, or a URI such as s3://bucket/folder.")
    match = _SCHEME.match(text)
    if match is None and not text.startswith("file:"):
        return of_path(os.path.join(folder, os.path.expanduser(text)))
    scheme = SCHEMES.get(text.partition(":")[0].lower())
    if scheme is None:
        raise _unknown_scheme(text)
    if scheme == "file":
        return of_path(_decoded(_file_path(text)))
    return _object_uri(scheme, text)


def of_path(path: str) -> str:
    """A path of this machine as a URI."""
    # Without links in between a/../b is b; with them only the file system knows.
    parts = path.split("/")
    absolute = os.path.realpath(path) if ".." in parts else os.path.abspath(path)
    return "file:///" + quote_from_bytes(os.fsencode(absolute.lstrip("/")), safe="/~=,:@+")


def path_of(file_uri: str) -> str:
    """The path of a `file:` URI that `uri` gave."""
    assert file_uri.startswith("file:///"), f"not a URI of a file: {file_uri}"
    return _decoded(file_uri.removeprefix("file://"))


def bucket_and_key(object_uri: str) -> tuple[str, str]:
    """The authority (bucket, container@account) and the key below it."""
    authority, _, key = object_uri.partition("://")[2].partition("/")
    return authority, key


def for_spark(place: str) -> str:
    """The place as Hadoop reads it: its name for the scheme, and nothing percent-encoded.

    A reader that takes patterns ([1], {a,b}, *) must escape them itself.
    """
    if place.startswith("file:"):
        return "file://" + path_of(place)
    if place.startswith("s3://"):
        return "s3a" + place.removeprefix("s3")
    return place


def _decoded(text: str) -> str:
    return os.fsdecode(unquote_to_bytes(os.fsencode(text)))


def _file_path(text: str) -> str:
    """The path of a `file:` URI as it is written, still encoded."""
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
        raise RunError("TG-504", f"a URI of {scheme} has a user or a port in it", hint=hint)
    key = key.rstrip("/")
    if key and any(part in ("", ".", "..") for part in key.split("/")):
        hint = "keys with //, /./ or /../ in them cannot be used."
        raise _rejected(text, "is no place in a bucket", hint)
    return f"{scheme}://{authority}/{key}" if key else f"{scheme}://{authority}"


def _rejected(text: str, why: str, hint: str) -> RunError:
    return RunError("TG-504", f"{text!r} {why}", hint=hint)


def _unknown_scheme(text: str) -> RunError:
    scheme = text.partition(":")[0]
    known = did_you_mean(scheme, SCHEMES, "schemes")
    return RunError(
        "TG-504",
        f"{scheme}: is not a scheme that Tidegate can read or write",
        hint=f"a local path needs no scheme (begin it with ./ if it has a colon); {known}",
    )
