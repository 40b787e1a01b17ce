"""Serialization of state: Arrow tables as bytes without their schema, and fingerprints.

The schema is part of the operator's fingerprint, so it is not stored with the rows. Checksums and
the format version are in the index of the state file.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

FINGERPRINT_BYTES = 8

_ALIGNMENT = 64
_PADDING = bytes(_ALIGNMENT)


def fingerprint(*parts: str) -> bytes:
    """Return eight bytes that differ if any part differs."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(raw)
    return digest.digest()[:FINGERPRINT_BYTES]


def table_to_bytes(table: pa.Table) -> bytes:
    """Serialize the rows of a table, without its schema."""
    message: bytes = _message(table).to_pybytes()
    return message


def table_from_bytes(payload: bytes | memoryview, schema: pa.Schema) -> pa.Table:
    """Return the table of a payload. It references the payload without a copy."""
    return _table(pa.py_buffer(payload), schema)


def tables_to_bytes(tables: Sequence[pa.Table]) -> bytes:
    """Serialize several tables: their number and sizes, then each at a multiple of 64 bytes."""
    messages = [_message(table) for table in tables]
    sizes = [message.size for message in messages]
    header = struct.pack(f"<{1 + len(sizes)}Q", len(sizes), *sizes)
    parts: list[Any] = [header, pad(len(header))]
    for message, size in zip(messages, sizes, strict=True):
        parts += (message, pad(size))
    return b"".join(parts)


def tables_from_bytes(payload: bytes | memoryview, schemas: Sequence[pa.Schema]) -> list[pa.Table]:
    """Return the tables of a payload. They reference the payload without a copy."""
    count, *sizes = struct.unpack_from(f"<{1 + len(schemas)}Q", payload)
    assert count == len(schemas), f"{count} tables stored, {len(schemas)} expected"
    buffer = pa.py_buffer(payload)
    tables: list[pa.Table] = []
    position = _aligned(8 * (1 + count))
    for size, schema in zip(sizes, schemas, strict=True):
        tables.append(_table(buffer.slice(position, size), schema))
        position += _aligned(size)
    return tables


def pad(size: int) -> bytes:
    """Return the bytes that fill a size up to a multiple of 64."""
    return _PADDING[: -size % _ALIGNMENT]


def _aligned(size: int) -> int:
    return size + -size % _ALIGNMENT


def _message(table: pa.Table) -> pa.Buffer:
    for field in table.schema:
        _reject_dictionary(field.type)
    return _one_batch(table).serialize()


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.to_batches()
    if len(batches) > 1:
        batches = table.combine_chunks().to_batches()
        assert len(batches) == 1, "a state table has less than 2 GiB of text per column"
    if batches:
        return batches[0]
    # A table without rows may have no batches.
    return pa.RecordBatch.from_arrays(
        [pa.nulls(0, field.type) for field in table.schema], schema=table.schema
    )


def _table(buffer: pa.Buffer, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches([pa.ipc.read_record_batch(buffer, schema)], schema)


def _reject_dictionary(dtype: pa.DataType) -> None:
    assert not pa.types.is_dictionary(dtype), (
        "the values of a dictionary are not part of the record batch"
    )
    for index in range(dtype.num_fields):
        _reject_dictionary(dtype.field(index).type)


def schema_text(schema: pa.Schema) -> str:
    """Return a text that differs for schemas whose serialized rows are not interchangeable."""
    return ", ".join(_field_text(field) for field in schema)


def _field_text(field: pa.Field) -> str:
    # Quoted, because a name may contain anything, including text that looks like a type.
    return f"{json.dumps(field.name)} {_item_text(field)}"


def _item_text(field: pa.Field) -> str:
    return _type_text(field.type) + ("" if field.nullable else " not null")


def _type_text(dtype: pa.DataType) -> str:
    """Omit the names of list items and map entries, because writers use different ones."""
    if pa.types.is_struct(dtype):
        fields = (_field_text(dtype.field(index)) for index in range(dtype.num_fields))
        return f"struct<{', '.join(fields)}>"
    if pa.types.is_map(dtype):
        return f"map<{_item_text(dtype.key_field)}, {_item_text(dtype.item_field)}>"
    if pa.types.is_list(dtype):
        return f"list<{_item_text(dtype.value_field)}>"
    if pa.types.is_large_list(dtype):
        return f"large_list<{_item_text(dtype.value_field)}>"
    return str(dtype)
