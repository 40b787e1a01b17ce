"""Keys that are structs, arrays, maps, zeros and NaN, and exact sums, in a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.sessions import play_with_restart, rows_of, standing

pytestmark = pytest.mark.spark

SCRIPT = """
CREATE SOURCE s (id BIGINT, a STRUCT<x: DOUBLE, t: ARRAY<STRING>>, m MAP<STRING, DOUBLE>, v DOUBLE,
                 PRIMARY KEY (id)) WITH (connector = 'memory', inserts_per_epoch = 1);
CREATE SOURCE r (a STRUCT<x: DOUBLE, t: ARRAY<STRING>>, w STRING) WITH (connector = 'memory', inserts_per_epoch = 1);
CREATE STREAM by_struct AS SELECT a, sum(v) AS total, count(DISTINCT m) AS maps FROM s GROUP BY a EMIT CHANGES;
CREATE STREAM by_map AS SELECT m, count(*) AS n FROM s GROUP BY m EMIT CHANGES;
CREATE STREAM joined WITH (state_ttl = '1 day') AS SELECT s.id, r.w FROM s JOIN r ON s.a = r.a;
CREATE STREAM latest AS SELECT id, a FROM s QUALIFY row_number() OVER (PARTITION BY a ORDER BY id DESC) = 1;
"""
STREAMS = ("by_struct", "by_map", "joined", "latest")


def row(number: int, x: float | None, texts: list[str], m: dict[str, float], v: float) -> Any:
    return {"id": number, "a": {"x": x, "t": texts}, "m": m, "v": v}


STEPS: list[dict[str, list[dict[str, Any]]]] = [
    {
        "s": [row(1, 0.0, ["p"], {"a": 0.0, "b": 1.0}, 1.0), row(2, None, [], {}, 0.25)],
        "r": [{"a": {"x": -0.0, "t": ["p"]}, "w": "met"}],
    },
    {"s": [row(3, -0.0, ["p"], {"b": 1.0, "a": -0.0}, 1e16)], "r": []},
    {"s": [row(3, 7.5, ["p"], {}, 1e16)], "r": [{"a": {"x": None, "t": []}, "w": "null inside"}]},
    {"s": [row(4, 0.0, ["p"], {"a": 2.0}, 0.5)], "r": []},
]


def test_nested_keys_equal_batch(spark: Any, data: Path) -> None:
    batches = play_with_restart(data, spark, SCRIPT, STREAMS, STEPS, key_groups=2)
    emitted = {name: standing(rows_of(batches[name])) for name in STREAMS}
    by_struct = {(r["a"]["x"], *r["a"]["t"]): (r["total"], r["maps"]) for r in emitted["by_struct"]}
    assert by_struct == {(0.0, "p"): (1.5, 2), (None,): (0.25, 1), (7.5, "p"): (1e16, 1)}
    assert "-0.0" not in repr(emitted["by_struct"]) and "-0.0" not in repr(emitted["by_map"])
    by_map = {repr(sorted(dict(r["m"]).items())): r["n"] for r in emitted["by_map"]}
    assert by_map == {"[('a', 0.0), ('b', 1.0)]": 1, "[]": 2, "[('a', 2.0)]": 1}
    pairs = sorted((r["id"], r["w"]) for r in emitted["joined"])
    assert pairs == [(1, "met"), (2, "null inside"), (4, "met")]
    assert sorted(r["id"] for r in emitted["latest"]) == [2, 3, 4]
