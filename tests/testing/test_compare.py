"""Comparison of rows: bags, order, tolerance, types and the diff."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tidegate.testing.case import Mismatch
from tidegate.testing.compare import Change, Difference, StreamOutput, compare, net_rows
from tidegate.types import ChangelogKind

COLUMNS = {
    "i": pa.int64(),
    "f": pa.float64(),
    "s": pa.string(),
    "t": pa.timestamp("us", "UTC"),
    "d": pa.decimal128(20, 4),
    "l": pa.list_(pa.float64()),
    "m": pa.struct([("x", pa.int32()), ("y", pa.string())]),
}
optional = some.one_of
rows = some.fixed_dictionaries(
    {
        "i": optional(some.none(), some.integers(-3, 3)),
        "f": optional(some.none(), some.floats(width=32)),
        "s": optional(some.none(), some.sampled_from(["", "a", "b"])),
        "t": optional(some.none(), some.datetimes(timezones=some.just(UTC))),
        "d": optional(some.none(), some.decimals(-9, 9, places=4)),
        "l": optional(some.none(), some.lists(some.floats(allow_nan=False), max_size=2)),
        "m": optional(
            some.none(), some.fixed_dictionaries({"x": some.integers(0, 1), "y": some.none()})
        ),
    }
)


@given(some.lists(rows, max_size=8), some.randoms(use_true_random=False))
def test_a_bag_equals_any_shuffle_of_itself(bag: list[dict[str, Any]], r: random.Random) -> None:
    shuffled = list(bag)
    r.shuffle(shuffled)
    assert compare(bag, shuffled, COLUMNS) is None


def counts(difference: Difference | None) -> tuple[int, int]:
    """Return how many rows are missing and unexpected."""
    assert difference is not None
    return len(difference.missing), len(difference.unexpected)


@given(some.lists(rows, min_size=1, max_size=6), some.data())
def test_a_bag_differs_after_any_change(bag: list[dict[str, Any]], data: some.DataObject) -> None:
    """Remove a row, duplicate a row, or change one cell."""
    index = data.draw(some.integers(0, len(bag) - 1))
    removed = compare(bag, bag[:index] + bag[index + 1 :], COLUMNS)
    assert counts(removed) == (1, 0)
    duplicated = compare(bag, [*bag, bag[index]], COLUMNS)
    assert counts(duplicated) == (0, 1)
    other = {"i": 99, "f": 0.5e20, "s": "other", "t": datetime(9999, 1, 1, tzinfo=UTC)}
    other |= {"d": Decimal("99.0001"), "l": [1.0, 2.0, 3.0], "m": {"x": 5, "y": "?"}}
    name = data.draw(some.sampled_from(sorted(COLUMNS)))
    changed = [*bag[:index], {**bag[index], name: other[name]}, *bag[index + 1 :]]
    difference = compare(bag, changed, COLUMNS)
    assert counts(difference) == (1, 1)


@pytest.mark.parametrize(
    ("kind", "expected", "actual"),
    [
        (pa.timestamp("us", "UTC"), "2024-01-01T00:00:00", datetime(2024, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us", "UTC"), "2024-01-01T01:00:00+01:00", datetime(2024, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us", "UTC"), datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us"), "2024-01-01 00:00:00.000001", datetime(2024, 1, 1, 0, 0, 0, 1)),
        (pa.timestamp("us", "UTC"), date(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)),
        (pa.date32(), "2024-01-01", date(2024, 1, 1)),
        (pa.string(), date(2024, 1, 1), "2024-01-01"),
        (pa.decimal128(10, 2), "1.10", Decimal("1.1000")),
        (pa.decimal128(10, 2), 1.1, Decimal("1.10")),
        (pa.decimal128(38, 0), "9" * 38, Decimal("9" * 38)),
        (pa.float64(), 1, 1.0000005),
        (pa.float64(), "NaN", float("nan")),
        (pa.float32(), 22.2, 22.200000762939453),
        (pa.float64(), 1e300, 1.0000001e300),
        (pa.int64(), 3.0, 3),
        (pa.list_(pa.timestamp("us", "UTC")), ["1970-01-01"], [datetime(1970, 1, 1, tzinfo=UTC)]),
        (pa.struct([("x", pa.float64())]), {"X": 1}, {"x": 1.0000001}),
        (pa.map_(pa.string(), pa.int32()), {"b": 2, "a": 1}, [("a", 1), ("b", 2)]),
        (pa.map_(pa.string(), pa.int32()), {}, []),
        (pa.int64(), None, None),
    ],
)
def test_expected_values_are_read_as_the_output_type(
    kind: pa.DataType, expected: Any, actual: Any
) -> None:
    assert compare([{"v": expected}], [{"v": actual}], {"v": kind}) is None


@pytest.mark.parametrize(
    ("kind", "expected", "actual"),
    [
        (pa.timestamp("us", "UTC"), "2024-01-01", datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        (pa.timestamp("us", "UTC"), "soon", datetime(2024, 1, 1, tzinfo=UTC)),
        (pa.decimal128(10, 2), "1.10", Decimal("1.11")),
        (pa.float64(), 1.0, 1.00001),
        (pa.float64(), 0.0, float("nan")),
        (pa.float64(), None, 0.0),
        (pa.int64(), "3", 3),
        (pa.int64(), True, 1),
        (pa.int64(), 3.5, 3),
        (pa.bool_(), 1, True),
        (pa.string(), 5, "5"),
        (pa.string(), "", None),
        (pa.list_(pa.int64()), [1, 2], [2, 1]),
        (pa.struct([("x", pa.int64())]), {"x": 1, "y": 2}, {"x": 1}),
    ],
)
def test_different_values_are_reported(kind: pa.DataType, expected: Any, actual: Any) -> None:
    assert compare([{"v": expected}], [{"v": actual}], {"v": kind}) is not None


def test_expected_rows_must_name_every_output_column() -> None:
    columns = {"a": pa.int64(), "b": pa.int64()}
    missing = compare([{"a": 1}], [{"a": 1, "b": 2}], columns)
    assert missing is not None
    assert missing.reason == "no expected row has the column b of the output"
    extra = compare([{"a": 1, "b": 2, "c": 3}], [{"a": 1, "b": 2}], columns)
    assert extra is not None
    assert extra.reason == "the output has no column c; it has a, b"
    assert (
        compare([{"A": 1, "B": None}, {"A": 2, "b": 3}], [{"a": 1}, {"a": 2, "b": 3}], columns)
        is None
    )


def test_order_is_compared_only_if_ordered() -> None:
    columns = {"n": pa.int64()}
    one, two = {"n": 1}, {"n": 2}
    assert compare([one, two], [two, one], columns) is None
    difference = compare([one, two], [two, one], columns, ordered=True)
    assert difference is not None
    assert difference.reason == "the rows are in a different order from row 1 on"
    assert compare([one, two, two], [one, two, two], columns, ordered=True) is None
    short = compare([one, two], [one], columns, ordered=True)
    assert short is not None and short.reason == "1 row missing"


def test_the_diff_is_a_table() -> None:
    columns = {"auction": pa.int64(), "at": pa.timestamp("us", "UTC"), "who": pa.string()}
    difference = compare(
        [{"auction": 1, "at": "2024-01-01", "who": "ada"}, {"auction": 2, "at": None, "who": "x"}],
        [
            {"auction": 2, "at": None, "who": "x"},
            {"auction": 1234567890, "at": None, "who": "b" * 99},
        ],
        columns,
    )
    assert difference is not None
    assert difference.reason == "1 row missing, 1 row unexpected"
    assert difference.render().splitlines() == [
        "    auction    | at                  | who",
        "  − 1          | 2024-01-01T00:00:00 | ada",
        "  + 1234567890 | NULL                | " + "b" * 39 + "…",
    ]


def test_a_long_diff_is_truncated() -> None:
    difference = compare([{"n": n} for n in range(50)], [], {})
    assert difference is not None
    lines = difference.render().splitlines()
    assert len(lines) == 22
    assert lines[-1] == "  − … and 30 more"


def test_retractions_remove_rows() -> None:
    table = pa.table({"_op": ["+I", "+I", "-U", "+U", "+I"], "n": [1, 2, 1, 3, 2]})
    output = StreamOutput(ChangelogKind.CHANGELOG)
    output.add(table)
    assert output.all_rows() == [{"n": 2}, {"n": 3}, {"n": 2}]
    assert output.new_rows(since=2) == [{"n": 3}, {"n": 2}]
    output.add(pa.table({"_op": ["-D"], "n": [9]}))
    with pytest.raises(Mismatch, match="retracts a row that does not exist"):
        output.all_rows()


def test_a_row_may_be_retracted_before_it_is_added() -> None:
    changes = [Change("-U", {"n": 1}), Change("+I", {"n": 1}), Change("+U", {"n": 2})]
    assert net_rows(changes) == ([{"n": 2}], [])


def test_upserts_replace_by_key() -> None:
    output = StreamOutput(ChangelogKind.UPSERT, ("k",))
    output.add(pa.table({"k": [1, 2, 1], "v": [10, 20, 11]}))
    output.add(pa.table({"k": [2], "v": [21]}))
    assert output.all_rows() == [{"k": 1, "v": 11}, {"k": 2, "v": 21}]
    assert output.new_rows(since=2) == [{"k": 1, "v": 11}, {"k": 2, "v": 21}]
    assert output.new_rows(since=3) == [{"k": 2, "v": 21}]


changes = some.lists(some.tuples(some.sampled_from(["+I", "-D"]), some.integers(0, 3)), max_size=20)


@given(changes)
def test_net_rows_are_the_balance_of_additions_and_retractions(
    script: list[tuple[str, int]],
) -> None:
    remaining, unmatched = net_rows([Change(op, {"n": n}) for op, n in script])
    for n in range(4):
        balance = sum(1 if op == "+I" else -1 for op, value in script if value == n)
        assert remaining.count({"n": n}) == max(balance, 0)
        assert unmatched.count({"n": n}) == max(-balance, 0)
