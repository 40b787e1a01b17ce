"""The schema registry, and the conversion of Avro records to JSON and of rows to Avro records.

Records become JSON, so that all formats are decoded in one way. JSON cannot express some
differences between types, so these are checked against the schema: bytes only fit BINARY columns,
and a number is only a time if its logical type says that.

Tasks import this module, so it must load little.
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.errors import RunError, SystemUnavailable, TidegateError

# ---- The schema registry, which assigns IDs to schemas.

# How long the registry may take to respond.
_RESPONSE_TIMEOUT_S = 10.0
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True)
class SchemaRegistryClient:
    """A client of a schema registry. It is pickled for tasks, and its repr hides the password."""

    # The declared source or sink; error messages begin with it.
    label: str
    url: str
    username: str | None = None
    password: str | None = field(repr=False, default=None)

    @classmethod
    def from_options(cls, label: str, options: Mapping[str, Any]) -> SchemaRegistryClient | None:
        """Create the registry of a source or sink; None if it has none."""
        url = options["registry_url"]
        if url is None:
            return None
        return cls(
            label, url.rstrip("/"), options["registry_username"], options["registry_password"]
        )

    def schema(self, schema_id: int) -> str | None:
        """Return the schema with this ID, or None if it does not exist."""
        response = self._request(f"/schemas/ids/{schema_id}")
        if response is None:
            return None
        schema_type = response.get("schemaType") or "AVRO"
        if schema_type != "AVRO" or response.get("references"):
            reason = (
                "refers to other schemas"
                if schema_type == "AVRO"
                else f"has the type {schema_type}"
            )
            raise RunError(
                "TG-523",
                f"{self.label}: the schema {schema_id} of the registry {self.url} {reason}",
                hint="only Avro schemas without references are supported: use format = 'raw'.",
            )
        return str(response["schema"])

    def register(self, subject: str, schema: str) -> int:
        """Register a schema if it is new, and return its ID."""
        from urllib.parse import quote

        path = f"/subjects/{quote(subject, safe='')}/versions"
        response = self._request(path, {"schema": schema})
        if response is None:
            raise self._unexpected("does not support registering schemas")
        return int(response["id"])

    def _request(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the response of the registry; None if it responds with 404."""
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import Request

        headers = {"Accept": _CONTENT_TYPE, "Content-Type": _CONTENT_TYPE}
        if self.username is not None:
            headers["Authorization"] = f"Basic {self._login}"
        data = json.dumps(body).encode() if body is not None else None
        try:
            with _open(Request(self.url + path, data, headers)) as response:
                content = json.load(response)
        except HTTPError as error:
            with error:
                self._require_not_found(error.code, error.read(2000))
                return None
        except (OSError, HTTPException) as error:
            raise self._unavailable(str(getattr(error, "reason", error))) from None
        except ValueError:
            raise self._unexpected("returns a response that is not JSON") from None
        if not isinstance(content, dict):
            raise self._unexpected("returns a response that is not a JSON object")
        return content

    def _require_not_found(self, status: int, content: bytes) -> None:
        """Raise the error for any failed response except 404."""
        if status == 404:
            return
        if status in (401, 403):
            raise RunError(
                "TG-512",
                f"the registry {self.url} rejected the login of {self.label}",
                hint="check registry_username and registry_password.",
            )
        if status in (408, 429) or status >= 500:
            raise self._unavailable(f"it responds with status {status}")
        text = " ".join(content.decode("utf-8", "replace").split())
        raise self._unexpected(f"responds with status {status}: {self._without_secrets(text)}")

    @property
    def _login(self) -> str:
        return base64.b64encode(f"{self.username}:{self.password or ''}".encode()).decode()

    def _without_secrets(self, text: str) -> str:
        if not self.password:
            return text
        return text.replace(self.password, "***").replace(self._login, "***")

    def _unavailable(self, reason: str) -> SystemUnavailable:
        return SystemUnavailable(
            f"{self.label} cannot reach the registry {self.url}: {self._without_secrets(reason)}",
            "start the registry, or correct the option registry_url.",
        )

    def _unexpected(self, problem: str) -> TidegateError:
        return RunError(
            "TG-529",
            f"{self.label}: the registry {self.url} {problem}",
            hint="check registry_url, and whether the schema is compatible with the earlier ones "
            "of its subject.",
        )


def _open(request: Any) -> Any:
    """Send a request without following redirects: their target would receive the login, too."""
    from urllib.request import HTTPRedirectHandler, build_opener

    class NoRedirects(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    return build_opener(NoRedirects).open(request, timeout=_RESPONSE_TIMEOUT_S)


# The hidden column with the reason why a record is malformed; NULL if it is not.
AVRO_REASON = "_tg_avro_reason"
# Columns that are written next to those of a row: its key, and whether it deletes the key.
KEY, DELETED = "_tg_key_out", "_tg_deleted_out"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The wire format of registries: this byte, four bytes with the schema ID, then the record.
_MAGIC = b"\0"
_PREFIX_BYTES = 5
_BINARY_TYPES = ("bytes", "fixed")


class MalformedRecord(Exception):
    """A record does not match its schema."""


def require_avro() -> None:
    """Check that fastavro is installed; it comes with the extra `kafka`."""
    try:
        import fastavro  # noqa: F401
    except ImportError:
        raise RunError(
            "TG-521", "the Avro codec is not installed", hint="pip install 'tidegate[kafka]'."
        ) from None


# ---- Reading.


@dataclass(frozen=True)
class AvroDecoder:
    """Converts the records of a source to JSON.

    The schema is an option of the source, or each record has its ID in the registry.
    """

    columns: pa.Schema
    schema: str | None
    registry: SchemaRegistryClient | None

    def texts(self, values: Sequence[bytes]) -> tuple[list[bytes], list[str | None]]:
        """Return the JSON of each record, and the reason why it is malformed or None.

        The text of a malformed record is not JSON. It has the bytes of the record in hexadecimal,
        for the dead letters.
        """
        texts: list[bytes] = []
        reasons: list[str | None] = []
        schemas: dict[int | None, _WriterSchema] = {}
        for value in values:
            try:
                texts.append(self._text(value, schemas))
                reasons.append(None)
            except MalformedRecord as error:
                texts.append(b"avro " + value.hex().encode())
                reasons.append(str(error))
        return texts, reasons

    def _text(self, value: bytes, schemas: dict[int | None, _WriterSchema]) -> bytes:
        from fastavro import schemaless_reader

        schema_id, body = None, value
        if self.registry is not None:
            if len(value) < _PREFIX_BYTES or value[:1] != _MAGIC:
                raise MalformedRecord("the record does not begin with a schema ID")
            schema_id = int.from_bytes(value[1:_PREFIX_BYTES], "big")
            body = value[_PREFIX_BYTES:]
        if schema_id not in schemas:
            schemas[schema_id] = _writer_schema(self, schema_id)
        schema = schemas[schema_id]
        if schema.mismatch is not None:
            raise MalformedRecord(schema.mismatch)
        stream = io.BytesIO(body)
        try:
            record: Any = schemaless_reader(stream, schema.parsed, None)
            text = json.dumps(record, default=_json_value, ensure_ascii=False).encode()
        except Exception:
            # fastavro raises many types of errors for bytes that do not match the schema.
            raise MalformedRecord("the record does not match the Avro schema") from None
        if stream.tell() != len(body):
            raise MalformedRecord("there are bytes after the end of the Avro record")
        return text


def _json_value(value: Any) -> str:
    """Convert a value without a JSON type to the text that Spark reads for its column type."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return value.isoformat()
    return str(value)


@dataclass(frozen=True)
class _WriterSchema:
    """A parsed schema of records, and the reason why its records cannot become rows, if any."""

    parsed: Any
    mismatch: str | None


_writer_schemas: dict[tuple[AvroDecoder, int | None], _WriterSchema] = {}


def _writer_schema(decoder: AvroDecoder, schema_id: int | None) -> _WriterSchema:
    """Return the schema of a record. It is cached: the schema of an ID never changes."""
    key = (decoder, schema_id)
    if key not in _writer_schemas:
        if schema_id is None:
            text = decoder.schema
        else:
            assert decoder.registry is not None, "only a registry has schema IDs"
            text = decoder.registry.schema(schema_id)
        if text is None:
            # Not cached: it may be registered a moment later.
            raise MalformedRecord(f"the registry has no schema {schema_id}")
        _writer_schemas[key] = _parse_schema(text, decoder.columns)
    return _writer_schemas[key]


def _parse_schema(text: str, columns: pa.Schema) -> _WriterSchema:
    from fastavro import parse_schema

    named_types: dict[str, Any] = {}
    try:
        parsed = parse_schema(json.loads(text), named_types)
    except Exception as error:
        return _WriterSchema(None, f"the Avro schema is invalid ({type(error).__name__})")
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        return _WriterSchema(None, "the Avro schema does not describe a record")
    return _WriterSchema(parsed, _mismatch(parsed, pa.struct(list(columns)), "", named_types))


def schema_problem(text: str) -> str | None:
    """Check the text of a schema without fastavro; return the problem or None."""
    try:
        schema = json.loads(text)
    except ValueError:
        return "it is not JSON"
    if not isinstance(schema, dict) or schema.get("type") != "record" or "fields" not in schema:
        return 'it is not a record schema: {"type": "record", "name": …, "fields": […]}'
    return None


def _mismatch(
    schema: Any, column_type: pa.DataType, name: str, named_types: dict[str, Any]
) -> str | None:
    """Return why values of a schema do not fit a column, if the JSON form would not show it."""
    if isinstance(schema, list):
        reasons = (
            _mismatch(branch, column_type, name, named_types)
            for branch in schema
            if branch != "null"
        )
        return next((reason for reason in reasons if reason is not None), None)
    if isinstance(schema, str):
        if schema in named_types:
            return _mismatch(named_types[schema], column_type, name, named_types)
        schema = {"type": schema}
    avro_type, logical_type = schema["type"], schema.get("logicalType")
    if not isinstance(avro_type, str):
        return _mismatch(avro_type, column_type, name, named_types)
    parts = _nested_parts(schema, column_type, name)
    if parts is not None:
        reasons = (_mismatch(*part, named_types) for part in parts)
        return next((reason for reason in reasons if reason is not None), None)
    return _scalar_mismatch(avro_type, logical_type, column_type, name)


def _nested_parts(
    schema: dict[str, Any], column_type: pa.DataType, name: str
) -> Iterator[tuple[Any, pa.DataType, str]] | None:
    """Return the schemas, types and names inside a nested type; None if both are not nested."""
    avro_type = schema["type"]
    if avro_type == "record" and pa.types.is_struct(column_type):
        types = {child.name.lower(): child.type for child in column_type}
        prefix = f"{name}." if name else ""
        fields = ((child["name"], child["type"]) for child in schema["fields"])
        common = ((child, inner) for child, inner in fields if child.lower() in types)
        return ((inner, types[child.lower()], prefix + child) for child, inner in common)
    if avro_type == "array" and pa.types.is_list(column_type):
        return iter([(schema["items"], column_type.value_type, name)])
    if avro_type == "map" and pa.types.is_map(column_type):
        return iter([(schema["values"], column_type.item_type, name)])
    return None


def _scalar_mismatch(
    avro_type: str, logical_type: str | None, column_type: pa.DataType, name: str
) -> str | None:
    shown = logical_type or avro_type
    is_binary = avro_type in _BINARY_TYPES and logical_type != "decimal"
    if pa.types.is_binary(column_type):
        return None if is_binary else f"{name} is BINARY, but {shown} in the Avro schema"
    if is_binary and not (pa.types.is_struct(column_type) or pa.types.is_list(column_type)):
        return f"{name} is {avro_type} in the Avro schema: declare it as BINARY"
    if pa.types.is_temporal(column_type) and avro_type in ("int", "long", "float", "double"):
        expected = "date" if pa.types.is_date(column_type) else "timestamp"
        if logical_type is None or expected not in logical_type or "nanos" in logical_type:
            return f"{name} is a {expected}, but {shown} in the Avro schema"
    return None


# ---- Writing.


def avro_schema(name: str, columns: pa.Schema) -> dict[str, Any]:
    """Return the schema of rows. Raises ValueError if a column cannot be written."""
    record = re.sub(r"\W", "_", name, flags=re.ASCII)
    record = record if _NAME.fullmatch(record) else f"_{record}"
    return _avro_record(pa.struct(list(columns)), record, "")


def _avro_type(arrow_type: pa.DataType, record: str, path: str) -> Any:
    """Return the Avro type for an Arrow type; `record` prefixes the names of nested records."""
    types = pa.types
    if types.is_struct(arrow_type):
        return _avro_record(arrow_type, record, path)
    if types.is_list(arrow_type):
        return {"type": "array", "items": _nullable(arrow_type.value_type, record, path)}
    if types.is_map(arrow_type):
        if not types.is_string(arrow_type.key_type):
            raise ValueError(f"{path} is a MAP whose keys are not STRING")
        return {"type": "map", "values": _nullable(arrow_type.item_type, record, path)}
    if types.is_decimal(arrow_type):
        sizes = {"precision": arrow_type.precision, "scale": arrow_type.scale}
        return {"type": "bytes", "logicalType": "decimal", **sizes}
    if types.is_timestamp(arrow_type):
        has_zone = arrow_type.tz is not None
        logical_type = "timestamp-micros" if has_zone else "local-timestamp-micros"
        return {"type": "long", "logicalType": logical_type}
    if types.is_date(arrow_type):
        return {"type": "int", "logicalType": "date"}
    for matches, avro_type in _SCALAR_TYPES:
        if matches(arrow_type):
            return avro_type
    raise ValueError(f"{path} has a type that Avro does not support")


def _avro_record(struct: pa.DataType, record: str, path: str) -> dict[str, Any]:
    fields = []
    for child in struct:
        if not _NAME.fullmatch(child.name):
            raise ValueError(f"{child.name!r} is not a valid name in Avro")
        child_path = f"{path}.{child.name}" if path else child.name
        types = _nullable(child.type, f"{record}_{child.name}", child_path)
        fields.append({"name": child.name, "type": types, "default": None})
    return {"type": "record", "name": record, "fields": fields}


def _nullable(arrow_type: pa.DataType, record: str, path: str) -> list[Any]:
    return ["null", _avro_type(arrow_type, record, path)]


def _is_small_integer(arrow_type: pa.DataType) -> bool:
    return arrow_type in (pa.int8(), pa.int16(), pa.int32())


_SCALAR_TYPES = (
    (pa.types.is_boolean, "boolean"),
    (_is_small_integer, "int"),
    (pa.types.is_int64, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_binary, "bytes"),
)


@dataclass(frozen=True)
class AvroEncoder:
    """Encodes rows as Avro records. With a registry, records begin with the ID of their schema."""

    schema: str
    schema_id: int | None

    def values(self, rows: pa.Table) -> list[bytes | None]:
        """Return the record of each row; None for rows that delete their key."""
        from fastavro import parse_schema

        parsed = parse_schema(json.loads(self.schema))
        deleted = rows.column(DELETED).to_pylist()
        fields = rows.drop_columns([KEY, DELETED])
        records = _with_numeric_times(fields).to_pylist(maps_as_pydicts="strict")
        pairs = zip(records, deleted, strict=True)
        return [None if is_deleted else self._value(record, parsed) for record, is_deleted in pairs]

    def _value(self, record: dict[str, Any], parsed: Any) -> bytes:
        from fastavro import schemaless_writer

        out = io.BytesIO()
        if self.schema_id is not None:
            out.write(_MAGIC + self.schema_id.to_bytes(_PREFIX_BYTES - 1, "big"))
        schemaless_writer(out, parsed, record)
        return out.getvalue()


def _with_numeric_times(rows: pa.Table) -> pa.Table:
    """Convert times to numbers: Python's datetime ends with the year 9999."""
    for index, column in enumerate(rows.schema):
        if pa.types.is_temporal(column.type):
            number = pa.int32() if pa.types.is_date(column.type) else pa.int64()
            rows = rows.set_column(index, column.name, rows.column(index).cast(number))
    return rows


@dataclass
class AvroWriter:
    """Encodes the rows of a task and spools their keys and records."""

    spool: Any
    encoder: AvroEncoder

    def add(self, rows: pa.Table) -> None:
        values = pa.array(self.encoder.values(rows), pa.binary())
        self.spool.add(pa.table({"key": rows.column(KEY), "value": values}))

    def finish(self) -> list[str]:
        return list(self.spool.finish())


@dataclass(frozen=True)
class AvroWriterFactory:
    """Opens Avro writers in tasks."""

    spool: Any
    encoder: AvroEncoder

    def open(self, stamp: str, task: int) -> AvroWriter:
        return AvroWriter(self.spool.open(stamp, task), self.encoder)
