"""The few calls a sink needs of a directory, on the local disk or on any system Hadoop knows.

Hadoop's local file system starts a process for every file it creates, so local paths are handled
here by Python itself.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlparse

from tidegate.errors import RunError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Directory(Protocol):
    """A directory and what lies below it; paths are texts that begin with `root`."""

    root: str

    def exists(self, path: str) -> bool: ...
    def make(self, path: str) -> None: ...
    def delete(self, path: str) -> None: ...
    def rename(self, source: str, goal: str) -> None: ...
    def files(self, path: str) -> Iterator[str]: ...
    def read_text(self, path: str) -> str | None: ...
    def write_text(self, path: str, text: str) -> None: ...


def open_directory(spark: SparkSession, path: str) -> Directory:
    """The directory at a path or URI."""
    parsed = urlparse(path)
    if parsed.scheme in ("", "file"):
        return LocalDirectory(path if not parsed.scheme else unquote(parsed.path))
    return HadoopDirectory(spark, path)


def literally(path: str) -> str:
    """A path for Spark's readers, which take [1] and {a,b} for patterns."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


class LocalDirectory:
    """A directory on this machine's disk."""

    def __init__(self, path: str) -> None:
        self.root = str(Path(path).absolute())

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def make(self, path: str) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)

    def delete(self, path: str) -> None:
        target = Path(path)
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    def rename(self, source: str, goal: str) -> None:
        """Rename, replacing the goal: a replay writes the same names again."""
        Path(source).replace(goal)

    def files(self, path: str) -> Iterator[str]:
        for folder, _, names in os.walk(path):
            for name in names:
                yield os.path.join(folder, name)  # noqa: PTH118

    def read_text(self, path: str) -> str | None:
        target = Path(path)
        return target.read_text("utf-8") if target.exists() else None

    def write_text(self, path: str, text: str) -> None:
        """Written aside, synced, renamed."""
        aside = Path(path + ".tmp")
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)


class HadoopDirectory:
    """A directory on HDFS, an object store, or whatever else Spark can reach."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._fs = self._path(path).getFileSystem(spark._jsc.hadoopConfiguration())
        self._io = jvm.org.apache.commons.io.IOUtils
        self._utf8 = jvm.java.nio.charset.StandardCharsets.UTF_8
        self.root = str(self._fs.makeQualified(self._path(path)).toString())

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def make(self, path: str) -> None:
        self._fs.mkdirs(self._path(path))

    def delete(self, path: str) -> None:
        self._fs.delete(self._path(path), True)

    def rename(self, source: str, goal: str) -> None:
        """Hadoop does not replace an existing goal, so it goes first."""
        self.delete(goal)
        if not self._fs.rename(self._path(source), self._path(goal)):
            raise RunError("TG-503", f"{source} could not be renamed to {goal}")

    def files(self, path: str) -> Iterator[str]:
        if not self.exists(path):
            return
        iterator = self._fs.listFiles(self._path(path), True)
        while iterator.hasNext():
            yield str(iterator.next().getPath().toString())

    def read_text(self, path: str) -> str | None:
        if not self.exists(path):
            return None
        stream = self._fs.open(self._path(path))
        try:
            return str(self._io.toString(stream, self._utf8))
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        stream = self._fs.create(self._path(path + ".tmp"), True)
        stream.write(bytearray(text.encode()))
        stream.close()
        self.rename(path + ".tmp", path)
