"""Scripts with files sinks that run repeatedly: INSERTs run once, files are merged, columns are kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate.errors import RunError

pytestmark = pytest.mark.spark

SCRIPT = """
CREATE SOURCE s (k STRING, v BIGINT) WITH (connector = 'memory', inserts_per_epoch = 1);
INSERT INTO s VALUES ('a', 1), ('b', 1);
INSERT INTO s VALUES ('a', 2);
INSERT INTO s VALUES ('a', 2);
{more}
CREATE STREAM t AS SELECT {columns} FROM s;
CREATE SINK parquet FROM t WITH (connector = 'files', path = '{out}/parquet', partition_by = 'k',
    compact_after = 2, max_file_rows = 100);
CREATE SINK csv FROM t WITH (connector = 'files', path = '{out}/csv', format = 'csv',
    compact_after = 3);
"""


def test_repeated_script_continues(spark: Any, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def run_script(more: str = "", columns: str = "k, v", command: str = "") -> list[str]:
        """Run the script on the existing data directory; return the messages of its INSERTs."""
        text = SCRIPT.format(more=more, columns=columns, out=out)
        with tidegate.open(data, spark=spark) as session:
            messages = [str(result.text) for result in session.execute(text)]
            session.start(available_now=True)
            session.wait()
            if command:
                session.stop()
                for _ in range(2):
                    session.execute(command)
                session.start(available_now=True)
                session.wait()
        return messages

    def stored() -> Counter[tuple[str, int]]:
        parquet = spark.read.parquet(str(out / "parquet")).select("k", "v").collect()
        csv = spark.read.schema("k STRING, v BIGINT").option("header", True).csv(str(out / "csv"))
        counts = Counter((row.k, row.v) for row in parquet)
        assert counts == Counter((row.k, row.v) for row in csv.collect())
        return counts

    assert run_script() == ["2 rows inserted into s", *["1 row inserted into s"] * 2]
    expected = Counter({("a", 1): 1, ("b", 1): 1, ("a", 2): 2})
    assert stored() == expected
    before = "0 rows inserted into s: this INSERT has already been executed"
    # New INSERTs of the script run once; a typed INSERT runs as often as it is typed.
    more = "INSERT INTO s VALUES ('c', 3);"
    command = "INSERT INTO s VALUES ('c', 3);"
    assert run_script(more, command=command) == [before] * 3 + ["1 row inserted into s"]
    assert run_script(more) == [before] * 4
    assert stored() == expected + Counter({("c", 3): 3})
    names = {sink: [p.name for p in (out / sink).rglob("*-to-*.*")] for sink in ("parquet", "csv")}
    assert len(names["parquet"]) == 2 and len(names["csv"]) == 1
    with pytest.raises(RunError) as caught:
        run_script(columns="k, CAST(v AS STRING) AS v")
    assert "the column v changed from BIGINT to STRING" in caught.value.message
    assert "CREATE SINK parquet" in caught.value.render()
    assert stored() == expected + Counter({("c", 3): 3})
    with tidegate.open(data, spark=spark) as session:
        session.execute("CREATE SOURCE s (v BIGINT) WITH (connector = 'memory');")
        session.execute("CREATE STREAM u AS SELECT v FROM s;")
        session.subscribe("u")
        session.start(available_now=True)
        session.wait()
        (parked,) = session.warnings
        assert parked.code == "TG-614" and "the stream t is parked" in parked.message
        assert str(parked.hint).endswith(f"tidegate prune {data} t")
