"""Java options of tests: fast compilation, and the classes of Spark from an archive.

`python -m tests.support.java` runs a small pipeline and archives the classes that it loads, so that other
tests start Java about five seconds faster. Tests also work without the archive.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

ARCHIVE = Path(__file__).parents[2] / ".venv" / "spark-classes.jsa"
# Tests run many queries over few rows, in many processes: optimizing compilation would take most
# of their time.
_SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_PIPELINE = """
CREATE SOURCE clicks (page STRING, n BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
    WITH (connector = 'files', path = '{folder}/in', format = 'json');
CREATE STREAM pages AS SELECT page, window_end, count(*) AS n, sum(n) AS total FROM clicks
    GROUP BY page, TUMBLE(ts, INTERVAL '1' MINUTE);
CREATE SINK out FROM pages WITH (connector = 'files', path = '{folder}/out', format = 'parquet');
"""


def environment() -> dict[str, str]:
    """Return the environment with the Java options for Spark."""
    archived = f" -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else ""
    return {"SPARK_SUBMIT_OPTS": f"{_SHORT}{archived}"}


def archive() -> None:
    """Write the archive when the Java process of a pipeline ends."""
    import tidegate

    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        new, rows = Path(folder) / "new.jsa", Path(folder) / "in" / "a.json"
        os.environ["SPARK_SUBMIT_OPTS"] = f"{_SHORT} -XX:ArchiveClassesAtExit={new} -Xlog:disable"
        rows.parent.mkdir()
        rows.write_text(
            "".join(
                f'{{"page": "p", "n": {n}, "ts": "2026-01-01T00:0{n}:00Z"}}\n' for n in range(5)
            )
        )
        with tidegate.open(f"{folder}/data") as session:
            session.execute(_PIPELINE.format(folder=folder))
            session.start()
            session.wait()
        _end_java()
        new.rename(ARCHIVE)


def _end_java() -> None:
    from pyspark import SparkContext

    SparkContext.getOrCreate().stop()
    java = SparkContext._gateway.proc
    java.stdin.close()
    java.wait()


if __name__ == "__main__":
    archive()
