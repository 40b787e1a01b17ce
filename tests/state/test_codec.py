"""Stored values: what was written comes back, what was damaged never does."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tidegate.errors import DataDirectoryError
from tidegate.state import codec

US, THEM = codec.fingerprint("us"), codec.fingerprint("them")
WHAT = "the state of the operator totals in key group 3"

INSTANT = dt.datetime(2024, 2, 29, 23, 59, 59, 999999)
# Every Arrow type that Spark makes of one of its types, with values at its ends.
VALUES: dict[pa.DataType, list[object]] = {
    pa.null(): [None, None],
    pa.bool_(): [True, False, None],
    pa.int8(): [-128, 127, None],
    pa.int16(): [-(2**15), 2**15 - 1, None],
    pa.int32(): [-(2**31), 2**31 - 1, None],
    pa.int64(): [-(2**63), 2**63 - 1, None],
    pa.float32(): [0.5, float("-inf"), None],
    pa.float64(): [1e308, -5e-324, float("inf"), None],
    pa.decimal128(10, 2): [Decimal("12345678.90"), Decimal("-0.01"), None],
    pa.decimal128(38, 18): [Decimal("99999999999999999999.999999999999999999"), None],
    pa.string(): ["", "grüße 🌊", "\x00", None],
    pa.large_string(): ["", "grüße 🌊", None],
    pa.binary(): [b"", b"\x00\xff", None],
    pa.large_binary(): [b"", b"\x00\xff", None],
    pa.date32(): [dt.date(1, 1, 1), dt.date(9999, 12, 31), None],
    pa.time64("us"): [dt.time(0), dt.time(23, 59, 59, 999999), None],
    pa.timestamp("us"): [INSTANT, dt.datetime(1, 1, 1), None],
    pa.timestamp("us", "UTC"): [INSTANT.replace(tzinfo=dt.UTC), None],
    pa.duration("us"): [dt.timedelta(days=-1, microseconds=1), None],
    pa.month_day_nano_interval(): [pa.MonthDayNano([14, -3, 1]), None],
    pa.list_(pa.int64()): [[1, None, 3], [], None],
    pa.large_list(pa.string()): [["a", None], [], None],
    pa.list_(pa.list_(pa.string())): [[["a"], None, []], None],
    pa.struct([("a", pa.int64()), ("b", pa.string())]): [{"a": 1, "b": None}, None],
    pa.struct([pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False)]): [
        {"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"},
        None,
    ],
    pa.map_(pa.string(), pa.int64()): [[("a", 1), ("b", None)], [], None],
    pa.map_(pa.string(), pa.list_(pa.struct([("x", pa.decimal128(20, 4))]))): [
        [("a", [{"x": Decimal("1.5000")}, None]), ("b", None)],
        None,
    ],
}


def people(rows: int) -> pa.Table:
    names = [None if row % 7 == 0 else f"name {row}" for row in range(rows)]
    return pa.table({"id": pa.array(range(rows), pa.int64()), "name": pa.array(names, pa.string())})


def round_trip(table: pa.Table) -> pa.Table:
    payload = codec.decode(codec.encode(codec.table_to_bytes(table), US), US, WHAT)
    assert payload is not None
    back = codec.table_from_bytes(payload, table.schema)
    back.validate(full=True)
    return back


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_scalar_value_roundtrip_all_types(kind: pa.DataType) -> None:
    table = pa.table({"value": pa.array(VALUES[kind], kind)})
    for part in (table, table.slice(0, 0), table.slice(1), table.slice(0, 1)):
        back = round_trip(part)
        assert back.schema == part.schema
        assert back.to_pylist() == part.to_pylist()


def test_all_types_in_one_table_roundtrip() -> None:
    columns = {str(kind): pa.array((values * 9)[:9], kind) for kind, values in VALUES.items()}
    table = pa.table(columns)
    assert round_trip(table).equals(table)


CELLS = some.fixed_dictionaries(
    {
        "i": some.none() | some.integers(-(2**63), 2**63 - 1),
        "f": some.none() | some.floats(allow_nan=False),
        "s": some.none() | some.text(max_size=5),
        "l": some.none() | some.lists(some.none() | some.booleans(), max_size=3),
    }
)
SCHEMA = pa.schema(
    [("i", pa.int64()), ("f", pa.float64()), ("s", pa.string()), ("l", pa.list_(pa.bool_()))]
)


@given(some.lists(some.lists(CELLS, max_size=5), max_size=4))
def test_any_rows_in_any_chunks_roundtrip(chunks: list[list[dict[str, object]]]) -> None:
    batches = [pa.RecordBatch.from_pylist(rows, SCHEMA) for rows in chunks]
    table = pa.Table.from_batches(batches, SCHEMA)
    back = round_trip(table)
    assert back.equals(table)
    assert back.num_columns == 0 or back.column(0).num_chunks == 1


@given(some.lists(some.integers(0, 40), max_size=5))
def test_several_tables_roundtrip(sizes: list[int]) -> None:
    tables = [people(size) for size in sizes]
    payload = codec.tables_to_bytes(tables)
    schemas = [table.schema for table in tables]
    assert codec.tables_from_bytes(memoryview(payload), schemas) == tables


def test_another_number_of_tables_is_a_mistake_of_ours() -> None:
    payload = codec.tables_to_bytes([people(1), people(2)])
    with pytest.raises(AssertionError, match="2 tables stored, 1 expected"):
        codec.tables_from_bytes(payload, [people(1).schema])


def test_rows_without_columns_are_counted() -> None:
    table = people(3).select([])
    assert codec.table_from_bytes(codec.table_to_bytes(table), table.schema).num_rows == 3


def test_part_of_a_large_table_is_stored_without_the_rest() -> None:
    part = people(10_000).slice(5_000, 10)
    assert len(codec.table_to_bytes(part)) < 1_000
    assert round_trip(part).equals(part)


def test_tables_are_read_where_they_lie() -> None:
    stored = codec.encode(codec.tables_to_bytes([people(100), people(1000)]), US)
    payload = codec.decode(stored, US, WHAT)
    assert payload is not None
    start = pa.py_buffer(stored).address
    for table in codec.tables_from_bytes(payload, [people(0).schema] * 2):
        for column in table.columns:
            for buffer in filter(None, column.chunk(0).buffers()):
                assert start <= buffer.address < start + len(stored)
                assert buffer.address % 8 == 0


def test_tables_keep_their_payload_alive() -> None:
    table = codec.table_from_bytes(bytearray(codec.table_to_bytes(people(50))), people(0).schema)
    assert table.equals(people(50))


@pytest.mark.parametrize(
    "nest", [lambda kind: kind, pa.list_, lambda kind: pa.map_(pa.int8(), kind)]
)
def test_dictionaries_are_rejected(nest) -> None:  # type: ignore[no-untyped-def]
    kind = nest(pa.dictionary(pa.int8(), pa.string()))
    with pytest.raises(AssertionError, match="dictionary"):
        codec.table_to_bytes(pa.schema([("d", kind)]).empty_table())


def test_restore_fingerprint_mismatch_skips_query() -> None:
    stored = codec.encode(b"payload", US)
    assert codec.decode(stored, US, WHAT) == b"payload"
    assert codec.decode(stored, THEM, WHAT) is None


def test_another_version_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = codec.encode(b"payload", US)
    monkeypatch.setattr(codec, "VERSION", codec.VERSION + 1)
    assert codec.decode(stored, US, WHAT) is None


def test_restore_corrupt_bytes_returns_error() -> None:
    stored = codec.encode(codec.tables_to_bytes([people(3), people(0)]), US)
    for position in range(len(stored)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(stored)
            damaged[position] ^= flip
            for fingerprint in (US, THEM):
                with pytest.raises(DataDirectoryError) as caught:
                    codec.decode(bytes(damaged), fingerprint, WHAT)
                assert caught.value.code == "TG-605"


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (b"TIDEGATE", "it is cut short"),
        (bytes(40), "it is not state that Tidegate wrote"),
        (codec.encode(b"payload", US)[:-1], "it has 6 bytes instead of 7"),
        (codec.encode(b"payload", US)[:-1] + b"x", "its checksum is wrong"),
    ],
)
def test_an_error_says_why(damaged: bytes, why: str) -> None:
    with pytest.raises(DataDirectoryError, match=why):
        codec.decode(damaged, US, WHAT)


def test_bytes_cut_short_or_too_long_are_an_error() -> None:
    stored = codec.encode(b"payload", US)
    for damaged in (*(stored[:length] for length in range(len(stored))), stored + b"\x00"):
        with pytest.raises(DataDirectoryError):
            codec.decode(damaged, US, WHAT)


@given(some.binary(max_size=100))
def test_bytes_of_others_are_an_error(data: bytes) -> None:
    with pytest.raises(DataDirectoryError):
        codec.decode(data, US, WHAT)


def test_an_error_says_what_cannot_be_read_and_what_to_do() -> None:
    with pytest.raises(DataDirectoryError) as caught:
        codec.decode(codec.encode(b"payload", US)[:-1] + b"x", US, WHAT)
    assert str(caught.value) == (
        f"error[TG-605]: {WHAT} cannot be read: its checksum is wrong\n"
        "Hint: put back a copy of the data directory from before, or remove the data of the stream: "
        "it then starts from the beginning."
    )


@given(some.binary())
def test_any_payload_roundtrips(payload: bytes) -> None:
    for given_as in (payload, memoryview(payload)):
        assert codec.decode(codec.encode(given_as, US), US, WHAT) == payload


@given(some.lists(some.text(max_size=3), max_size=3), some.lists(some.text(max_size=3), max_size=3))
def test_fingerprints_differ_when_a_part_differs(one: list[str], two: list[str]) -> None:
    assert (codec.fingerprint(*one) == codec.fingerprint(*two)) == (one == two)
    assert len(codec.fingerprint(*one)) == 8


def test_a_fingerprint_stays_the_same_for_ever() -> None:
    assert codec.fingerprint("SELECT 1", "a int64").hex() == "30c9a408c5913282"


def test_the_text_of_a_schema_stays_the_same_for_ever() -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field('odd "name", int64', pa.timestamp("us", "UTC")),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
            pa.field("more", pa.map_(pa.string(), pa.struct([("x", pa.large_list(pa.date32()))]))),
        ],
        metadata={"pandas": "{}"},
    )
    assert codec.schema_text(schema) == (
        '"id" int64 not null, "odd \\"name\\", int64" timestamp[us, tz=UTC], '
        '"price" decimal128(10, 2), "tags" list<string not null>, '
        '"more" map<string not null, struct<"x" large_list<date32[day]>>>'
    )


def test_the_text_of_a_schema_leaves_out_the_names_of_list_items() -> None:
    one = pa.schema([("l", pa.list_(pa.field("item", pa.int8())))])
    two = pa.schema([("l", pa.list_(pa.field("element", pa.int8())))])
    assert codec.schema_text(one) == codec.schema_text(two)


def test_every_type_has_a_text_of_its_own() -> None:
    texts = {codec.schema_text(pa.schema([("value", kind)])) for kind in VALUES}
    assert len(texts) == len(VALUES)


def test_state_needs_neither_spark_nor_pandas() -> None:
    modules = ("codec", "memory", "keyed_state")
    imports = "".join(f"import tidegate.state.{module}; " for module in modules)
    check = "import sys; assert not {'pyspark', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"{imports}{check}"], check=True)
