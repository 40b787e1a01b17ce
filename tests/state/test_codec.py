"""Serialization of tables, fingerprints and the text of schemas."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.state import codec

INSTANT = dt.datetime(2024, 2, 29, 23, 59, 59, 999999)
# Every Arrow type that Spark types are converted to, with extreme values.
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
    result = codec.table_from_bytes(codec.table_to_bytes(table), table.schema)
    result.validate(full=True)
    return result


@pytest.mark.parametrize("dtype", VALUES, ids=str)
def test_round_trips_values_of_every_type(dtype: pa.DataType) -> None:
    table = pa.table({"value": pa.array(VALUES[dtype], dtype)})
    for part in (table, table.slice(0, 0), table.slice(1), table.slice(0, 1)):
        result = round_trip(part)
        assert result.schema == part.schema
        assert result.to_pylist() == part.to_pylist()


def test_round_trips_table_with_all_types() -> None:
    columns = {str(dtype): pa.array((values * 9)[:9], dtype) for dtype, values in VALUES.items()}
    table = pa.table(columns)
    assert round_trip(table).equals(table)


CELLS = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(allow_nan=False),
        "s": st.none() | st.text(max_size=5),
        "l": st.none() | st.lists(st.none() | st.booleans(), max_size=3),
    }
)
SCHEMA = pa.schema(
    [("i", pa.int64()), ("f", pa.float64()), ("s", pa.string()), ("l", pa.list_(pa.bool_()))]
)


@given(st.lists(st.lists(CELLS, max_size=5), max_size=4))
def test_round_trips_chunked_tables(chunks: list[list[dict[str, object]]]) -> None:
    batches = [pa.RecordBatch.from_pylist(rows, SCHEMA) for rows in chunks]
    table = pa.Table.from_batches(batches, SCHEMA)
    result = round_trip(table)
    assert result.equals(table)
    assert result.num_columns == 0 or result.column(0).num_chunks == 1


@given(st.lists(st.integers(0, 40), max_size=5))
def test_round_trips_several_tables(sizes: list[int]) -> None:
    tables = [people(size) for size in sizes]
    payload = codec.tables_to_bytes(tables)
    schemas = [table.schema for table in tables]
    assert codec.tables_from_bytes(memoryview(payload), schemas) == tables


def test_rejects_wrong_number_of_tables() -> None:
    payload = codec.tables_to_bytes([people(1), people(2)])
    with pytest.raises(AssertionError, match="2 tables stored, 1 expected"):
        codec.tables_from_bytes(payload, [people(1).schema])


def test_keeps_number_of_rows_without_columns() -> None:
    table = people(3).select([])
    assert codec.table_from_bytes(codec.table_to_bytes(table), table.schema).num_rows == 3


def test_slice_is_stored_without_the_rest() -> None:
    part = people(10_000).slice(5_000, 10)
    assert len(codec.table_to_bytes(part)) < 1_000
    assert round_trip(part).equals(part)


def test_tables_reference_the_payload() -> None:
    payload = codec.tables_to_bytes([people(100), people(1000)])
    start = pa.py_buffer(payload).address
    for table in codec.tables_from_bytes(payload, [people(0).schema] * 2):
        for column in table.columns:
            for buffer in filter(None, column.chunk(0).buffers()):
                assert start <= buffer.address < start + len(payload)
                assert buffer.address % 8 == 0


def test_tables_keep_their_payload_alive() -> None:
    table = codec.table_from_bytes(bytearray(codec.table_to_bytes(people(50))), people(0).schema)
    assert table.equals(people(50))


@pytest.mark.parametrize(
    "nest", [lambda dtype: dtype, pa.list_, lambda dtype: pa.map_(pa.int8(), dtype)]
)
def test_rejects_dictionary_types(nest) -> None:  # type: ignore[no-untyped-def]
    dtype = nest(pa.dictionary(pa.int8(), pa.string()))
    with pytest.raises(AssertionError, match="dictionary"):
        codec.table_to_bytes(pa.schema([("d", dtype)]).empty_table())


@given(st.lists(st.text(max_size=3), max_size=3), st.lists(st.text(max_size=3), max_size=3))
def test_fingerprints_differ_if_a_part_differs(one: list[str], two: list[str]) -> None:
    assert (codec.fingerprint(*one) == codec.fingerprint(*two)) == (one == two)
    assert len(codec.fingerprint(*one)) == 8


def test_fingerprint_is_stable() -> None:
    assert codec.fingerprint("SELECT 1", "a int64").hex() == "30c9a408c5913282"


def test_schema_text_is_stable() -> None:
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


def test_schema_text_omits_names_of_list_items() -> None:
    one = pa.schema([("l", pa.list_(pa.field("item", pa.int8())))])
    two = pa.schema([("l", pa.list_(pa.field("element", pa.int8())))])
    assert codec.schema_text(one) == codec.schema_text(two)


def test_schema_text_differs_for_every_type() -> None:
    texts = {codec.schema_text(pa.schema([("value", dtype)])) for dtype in VALUES}
    assert len(texts) == len(VALUES)


def test_import_loads_neither_spark_nor_pandas() -> None:
    modules = ("codec", "memory", "keyed_state")
    imports = "".join(f"import tidegate.state.{module}; " for module in modules)
    check = "import sys; assert not {'pyspark', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"{imports}{check}"], check=True)
