"""Names of declared things, which are also names of folders and files."""

from __future__ import annotations

# Its name also says that a directory is ours.
LOCK = "tidegate.lock"
SPARK_LOG = "spark.log"
# File systems take 255 bytes, and the files of a sink have the names of its pipeline and its own.
MOST_BYTES = 100
_RESERVED = frozenset({LOCK, SPARK_LOG})
_SIGNS = frozenset("_-. ")


def unsafe(name: str) -> str | None:
    """Why a name cannot name a folder of the data directory; None if it can."""
    folder = name.lower()
    if not name.strip():
        return "it is empty"
    if len(folder.encode("utf-8", "replace")) > MOST_BYTES:
        return f"it is longer than {MOST_BYTES} bytes"
    if folder in _RESERVED:
        return "the data directory has a file of that name"
    wrong = next((sign for sign in name if not (sign.isalnum() or sign in _SIGNS)), None)
    if wrong is not None:
        return f"it contains {wrong!r}"
    if folder[0] in "_.":
        return "what begins with _ or . in the data directory is Tidegate's own"
    if name != name.strip() or name.endswith("."):
        return "it begins or ends with a blank or a dot"
    return None
