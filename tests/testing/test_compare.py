"""Bags, order, tolerance, types and the diff."""

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
from tidegate.testing.compare import Change, StreamOutput, compare, standing
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
maybe = some.one_of
rows = some.fixed_dictionaries(
    {
        "i": maybe(some.none(), some.integers(-3, 3)),
        "f": maybe(some.none(), some.floats(width=32)),
        "s": maybe(some.none(), some.sampled_from(["", "a", "b"])),
        "t": maybe(some.none(), some.datetimes(timezones=some.just(UTC))),
        "d": maybe(some.none(), some.decimals(-9, 9, places=4)),
        "l": maybe(some.none(), some.lists(some.floats(allow_nan=False), max_size=2)),
        "m": maybe(
            some.none(), some.fixed_dictionaries({"x": some.integers(0, 1), "y": some.none()})
        ),
    }
)


@given(some.lists(rows, max_size=8), some.randoms(use_true_random=False))
def test_a_bag_equals_any_shuffle_of_itself(bag: list[dict[str, Any]], r: random.Random) -> None:
    shuffled = list(bag)
    r.shuffle(shuffled)
    assert compare(bag, shuffled, COLUMNS) is None


@given(some.lists(rows, min_size=1, max_size=6), some.data())
def test_a_bag_differs_after_any_change(bag: list[dict[str, Any]], data: some.DataObject) -> None:
    """A row lost, doubled, or with one cell changed: always seen, and counted right."""
    at = data.draw(some.integers(0, len(bag) - 1))
    lost = compare(bag, bag[:at] + bag[at + 1 :], COLUMNS)
    assert lost is not None and (len(lost.missing), len(lost.unexpected)) == (1, 0)
    doubled = compare(bag, [*bag, bag[at]], COLUMNS)
    assert doubled is not None and (len(doubled.missing), len(doubled.unexpected)) == (0, 1)
    other = {"i": 99, "f": 0.5e20, "s": "other", "t": datetime(9999, 1, 1, tzinfo=UTC)}
    other |= {"d": Decimal("99.0001"), "l": [1.0, 2.0, 3.0], "m": {"x": 5, "y": "?"}}
    name = data.draw(some.sampled_from(sorted(COLUMNS)))
    changed = [*bag[:at], {**bag[at], name: other[name]}, *bag[at + 1 :]]
    found = compare(bag, changed, COLUMNS)
    assert found is not None and (len(found.missing), len(found.unexpected)) == (1, 1)


@pytest.mark.parametrize(
    ("kind", "wanted", "found"),
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
def test_equal_values(kind: pa.DataType, wanted: Any, found: Any) -> None:
    assert compare([{"v": wanted}], [{"v": found}], {"v": kind}) is None


@pytest.mark.parametrize(
    ("kind", "wanted", "found"),
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
def test_different_values(kind: pa.DataType, wanted: Any, found: Any) -> None:
    assert compare([{"v": wanted}], [{"v": found}], {"v": kind}) is not None


def test_columns_must_be_the_same() -> None:
    kinds = {"a": pa.int64(), "b": pa.int64()}
    missing = compare([{"a": 1}], [{"a": 1, "b": 2}], kinds)
    assert missing is not None
    assert missing.reason == "no expected row has the column b of the output"
    extra = compare([{"a": 1, "b": 2, "c": 3}], [{"a": 1, "b": 2}], kinds)
    assert extra is not None
    assert extra.reason == "the output has no column c; it has a, b"
    assert (
        compare([{"A": 1, "B": None}, {"A": 2, "b": 3}], [{"a": 1}, {"a": 2, "b": 3}], kinds)
        is None
    )


def test_order_counts_only_when_asked() -> None:
    kinds = {"n": pa.int64()}
    one, two = {"n": 1}, {"n": 2}
    assert compare([one, two], [two, one], kinds) is None
    found = compare([one, two], [two, one], kinds, ordered=True)
    assert found is not None and found.reason == "the right rows in another order, from row 1 on"
    assert compare([one, two, two], [one, two, two], kinds, ordered=True) is None
    short = compare([one, two], [one], kinds, ordered=True)
    assert short is not None and short.reason == "1 row missing"


def test_the_diff_is_a_table() -> None:
    kinds = {"auction": pa.int64(), "at": pa.timestamp("us", "UTC"), "who": pa.string()}
    found = compare(
        [{"auction": 1, "at": "2024-01-01", "who": "ada"}, {"auction": 2, "at": None, "who": "x"}],
        [
            {"auction": 2, "at": None, "who": "x"},
            {"auction": 1234567890, "at": None, "who": "b" * 99},
        ],
        kinds,
    )
    assert found is not None
    assert found.reason == "1 row missing, 1 row unexpected"
    assert found.render().splitlines() == [
        "    auction    | at                  | who",
        "  − 1          | 2024-01-01T00:00:00 | ada",
        "  + 1234567890 | NULL                | " + "b" * 39 + "…",
    ]


def test_a_long_diff_is_cut() -> None:
    found = compare([{"n": n} for n in range(50)], [], {})
    assert found is not None
    lines = found.render().splitlines()
    assert len(lines) == 22
    assert lines[-1] == "  − … and 30 more"


def test_signed_rows_add_up() -> None:
    table = pa.table({"_op": ["+I", "+I", "-U", "+U", "+I"], "n": [1, 2, 1, 3, 2]})
    found = StreamOutput(ChangelogKind.CHANGELOG)
    found.add(table)
    assert found.all_rows() == [{"n": 2}, {"n": 3}, {"n": 2}]
    assert found.new_rows(since=2) == [{"n": 3}, {"n": 2}]
    found.add(pa.table({"_op": ["-D"], "n": [9]}))
    with pytest.raises(Mismatch, match="retracts a row that is not there"):
        found.all_rows()


def test_a_row_may_be_taken_back_before_it_is_added() -> None:
    changes = [Change("-U", {"n": 1}), Change("+I", {"n": 1}), Change("+U", {"n": 2})]
    assert standing(changes) == ([{"n": 2}], [])


def test_upserts_replace_by_key() -> None:
    found = StreamOutput(ChangelogKind.UPSERT, ("k",))
    found.add(pa.table({"k": [1, 2, 1], "v": [10, 20, 11]}))
    found.add(pa.table({"k": [2], "v": [21]}))
    assert found.all_rows() == [{"k": 1, "v": 11}, {"k": 2, "v": 21}]
    assert found.new_rows(since=2) == [{"k": 1, "v": 11}, {"k": 2, "v": 21}]
    assert found.new_rows(since=3) == [{"k": 2, "v": 21}]


changes = some.lists(some.tuples(some.sampled_from(["+I", "-D"]), some.integers(0, 3)), max_size=20)


@given(changes)
def test_what_stands_is_the_balance(script: list[tuple[str, int]]) -> None:
    left, owed = standing([Change(op, {"n": n}) for op, n in script])
    for n in range(4):
        balance = sum(1 if op == "+I" else -1 for op, value in script if value == n)
        assert left.count({"n": n}) == max(balance, 0)
        assert owed.count({"n": n}) == max(-balance, 0)
