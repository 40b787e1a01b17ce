"""A stored value: a header with version, fingerprint and checksum, then the payload.

The payload of tables is Arrow record batches without their schema: the schema belongs to the
operator and so to its fingerprint. The header is the same in all versions and the checksum covers
all of it, so that a damaged fingerprint is an error and not another operator's state.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidegate.errors import DataDirectoryError

VERSION = 1
FINGERPRINT_BYTES = 8

_MAGIC = b"TIDEGATE"
_HEADER = struct.Struct("<8sI8sQ")
_CHECKSUM = struct.Struct("<I")
# 32, so that a payload lies in memory as well aligned as the stored bytes do.
_HEADER_BYTES = _HEADER.size + _CHECKSUM.size
_ALIGNMENT = 64
_PADDING = bytes(_ALIGNMENT)


def fingerprint(*parts: str) -> bytes:
    """Eight bytes that differ when any part differs."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(raw)
    return digest.digest()[:FINGERPRINT_BYTES]


def encode(payload: bytes | memoryview, fingerprint: bytes) -> bytes:
    """The stored value of a payload."""
    assert len(fingerprint) == FINGERPRINT_BYTES, "a fingerprint has eight bytes"
    size = memoryview(payload).nbytes
    header = _HEADER.pack(_MAGIC, VERSION, fingerprint, size)
    checksum = zlib.crc32(payload, zlib.crc32(header))
    return b"".join((header, _CHECKSUM.pack(checksum), payload))


def decode(stored: bytes, fingerprint: bytes, what: str) -> memoryview | None:
    """The payload of a stored value; None if another version or fingerprint wrote it."""
    view = memoryview(stored)
    if len(view) < _HEADER_BYTES:
        raise _unreadable(what, "it is cut short")
    magic, version, written_by, size = _HEADER.unpack_from(view)
    payload = view[_HEADER_BYTES:]
    if magic != _MAGIC:
        raise _unreadable(what, "it is not state that Tidegate wrote")
    if size != len(payload):
        raise _unreadable(what, f"it has {len(payload)} bytes instead of {size}")
    (checksum,) = _CHECKSUM.unpack_from(view, _HEADER.size)
    if checksum != zlib.crc32(payload, zlib.crc32(view[: _HEADER.size])):
        raise _unreadable(what, "its checksum is wrong")
    return payload if (version, written_by) == (VERSION, fingerprint) else None


def _unreadable(what: str, why: str) -> DataDirectoryError:
    return DataDirectoryError(
        "TG-605",
        f"{what} cannot be read: {why}",
        hint="put back a copy of the data directory from before, or remove the data of the stream: "
        "it then starts from the beginning.",
    )


def table_to_bytes(table: pa.Table) -> bytes:
    """The rows of a table, without its schema."""
    message: bytes = _message(table).to_pybytes()
    return message


def table_from_bytes(payload: bytes | memoryview, schema: pa.Schema) -> pa.Table:
    """The table of its rows; it reads from the payload and keeps it alive."""
    return _table(pa.py_buffer(payload), schema)


def tables_to_bytes(tables: Sequence[pa.Table]) -> bytes:
    """The rows of several tables: their number and sizes, then each at a multiple of 64 bytes."""
    messages = [_message(table) for table in tables]
    sizes = [message.size for message in messages]
    handle = struct.pack(f"<{1 + len(sizes)}Q", len(sizes), *sizes)
    parts: list[Any] = [handle, _PADDING[: -len(handle) % _ALIGNMENT]]
    for message, size in zip(messages, sizes, strict=True):
        parts += (message, _PADDING[: -size % _ALIGNMENT])
    return b"".join(parts)


def tables_from_bytes(payload: bytes | memoryview, schemas: Sequence[pa.Schema]) -> list[pa.Table]:
    """The tables of their rows; they read from the payload and keep it alive."""
    count, *sizes = struct.unpack_from(f"<{1 + len(schemas)}Q", payload)
    assert count == len(schemas), f"{count} tables stored, {len(schemas)} expected"
    buffer = pa.py_buffer(payload)
    tables: list[pa.Table] = []
    position = _aligned(8 * (1 + count))
    for size, schema in zip(sizes, schemas, strict=True):
        tables.append(_table(buffer.slice(position, size), schema))
        position += _aligned(size)
    return tables


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
        assert len(batches) == 1, "one state has less than 2 GiB of text in a column"
    if batches:
        return batches[0]
    # A table without rows may have no batch at all.
    return pa.RecordBatch.from_arrays(
        [pa.nulls(0, field.type) for field in table.schema], schema=table.schema
    )


def _table(buffer: pa.Buffer, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches([pa.ipc.read_record_batch(buffer, schema)], schema)


def _reject_dictionary(kind: pa.DataType) -> None:
    assert not pa.types.is_dictionary(kind), "a dictionary lies outside of its record batch"
    for index in range(kind.num_fields):
        _reject_dictionary(kind.field(index).type)


def schema_text(schema: pa.Schema) -> str:
    """A schema as text that differs when what is stored would be read otherwise."""
    return ", ".join(_field_text(field) for field in schema)


def _field_text(field: pa.Field) -> str:
    # Quoted, because a name may hold anything, also what looks like a type.
    return f"{json.dumps(field.name)} {_item_text(field)}"


def _item_text(field: pa.Field) -> str:
    return _type_text(field.type) + ("" if field.nullable else " not null")


def _type_text(kind: pa.DataType) -> str:
    """The names of list items and map entries are left out: writers differ in them."""
    if pa.types.is_struct(kind):
        fields = (_field_text(kind.field(index)) for index in range(kind.num_fields))
        return f"struct<{', '.join(fields)}>"
    if pa.types.is_map(kind):
        return f"map<{_item_text(kind.key_field)}, {_item_text(kind.item_field)}>"
    if pa.types.is_list(kind):
        return f"list<{_item_text(kind.value_field)}>"
    if pa.types.is_large_list(kind):
        return f"large_list<{_item_text(kind.value_field)}>"
    return str(kind)
