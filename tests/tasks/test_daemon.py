"""The process from which Spark forks Python workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark

from tidegate.spark.daemon import without_archive

LIB = Path(pyspark.__file__).parent / "python" / "lib"


def test_removes_the_archive_only_if_the_same_pyspark_is_installed(tmp_path: Path) -> None:
    py4j = str(LIB / "py4j-src.zip")
    assert without_archive([str(LIB / "pyspark.zip"), py4j, *sys.path]) == [py4j, *sys.path]
    other = [str(tmp_path / "pyspark.zip"), *sys.path]
    assert without_archive(other) == other, "that is another Spark's"
    alone = [str(LIB / "pyspark.zip"), str(tmp_path)]
    assert without_archive(alone) == alone, "there is no other"
