"""Records in Avro, as texts that Spark decodes, and rows as records in Avro.

A record becomes JSON, so that one way leads from records to rows. What JSON cannot tell apart is
judged by the schema: bytes are for BINARY alone, and a number is no time unless the schema says so.
Tasks import this module: it must load little.
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

# ---- A schema registry: which schema a number stands for. Tasks import it: it must load little.

# How long the registry may take to answer.
_ANSWER_SECONDS = 10.0
_TYPE = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True)
class Registry:
    """Where schemas are registered; goes to tasks, and never shows its password."""

    owner: str
    url: str
    username: str | None = None
    password: str | None = field(repr=False, default=None)

    @classmethod
    def of(cls, owner: str, options: Mapping[str, Any]) -> Registry | None:
        """The registry of a declared source or sink, if it has one."""
        url = options["registry_url"]
        if url is None:
            return None
        own = (options["registry_username"], options["registry_password"])
        return cls(owner, url.rstrip("/"), *own)

    def schema(self, number: int) -> str | None:
        """The schema of a number; None if there is none."""
        found = self._ask(f"/schemas/ids/{number}")
        if found is None:
            return None
        kind = found.get("schemaType") or "AVRO"
        if kind != "AVRO" or found.get("references"):
            why = "refers to others" if kind == "AVRO" else f"is of the type {kind}"
            raise RunError(
                "TG-523",
                f"{self.owner}: the schema {number} of the registry {self.url} {why}",
                hint="only Avro schemas that stand by themselves are read: use format = 'raw'.",
            )
        return str(found["schema"])

    def register(self, subject: str, schema: str) -> int:
        """The number of a schema, which gets one if it is new."""
        from urllib.parse import quote

        path = f"/subjects/{quote(subject, safe='')}/versions"
        found = self._ask(path, {"schema": schema})
        if found is None:
            raise self._odd("does not know how to register a schema")
        return int(found["id"])

    def _ask(self, path: str, given: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """What it answers; None if it says that there is no such thing."""
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import Request

        headers = {"Accept": _TYPE, "Content-Type": _TYPE}
        if self.username is not None:
            login = f"{self.username}:{self.password or ''}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        body = json.dumps(given).encode() if given is not None else None
        try:
            with _open(Request(self.url + path, body, headers)) as answer:
                found = json.load(answer)
        except HTTPError as error:
            with error:
                self._require_missing(error.code, error.read(2000))
                return None
        except (OSError, HTTPException) as error:
            raise self._away(str(getattr(error, "reason", error))) from None
        except ValueError:
            raise self._odd("answers something that is not JSON") from None
        if not isinstance(found, dict):
            raise self._odd("answers something that is not an object")
        return found

    def _require_missing(self, code: int, answer: bytes) -> None:
        """That there is no such thing is an answer; all else it rejects with is an error."""
        if code == 404:
            return
        if code in (401, 403):
            raise RunError(
                "TG-512",
                f"{self.owner} is not let in by the registry {self.url}",
                hint="check registry_username and registry_password.",
            )
        if code in (408, 429) or code >= 500:
            raise self._away(f"it answers with {code}")
        told = " ".join(answer.decode("utf-8", "replace").split())
        raise self._odd(f"rejects with {code}: {self._hidden(told)}")

    def _hidden(self, text: str) -> str:
        return text.replace(self.password, "***") if self.password else text

    def _away(self, why: str) -> SystemUnavailable:
        return SystemUnavailable(
            f"{self.owner} cannot reach the registry {self.url}: {self._hidden(why)}",
            "start the registry, or correct the option registry_url.",
        )

    def _odd(self, what: str) -> TidegateError:
        return RunError(
            "TG-529",
            f"{self.owner}: the registry {self.url} {what}",
            hint="check registry_url, and whether the schema fits those that the subject has.",
        )


def _open(request: Any) -> Any:
    """Send a request without following redirects: they would receive the login, too."""
    from urllib.request import HTTPRedirectHandler, build_opener

    class NoRedirects(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    return build_opener(NoRedirects).open(request, timeout=_ANSWER_SECONDS)


# Why a record is no record of its schema; NULL if it is one.
REASON = "_tg_avro_reason"
# What is written beside the columns of a row: its key, and whether it goes.
KEY, GONE = "_tg_key_out", "_tg_gone_out"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The first byte of a record whose schema is in a registry; four with the number of it follow.
_MAGIC = b"\0"
_PREFIX = 5
_BINARY = ("bytes", "fixed")


class NoRecord(Exception):
    """Bytes that are no record of their schema."""


def require_avro() -> None:
    """The codec comes with the extra `kafka`."""
    try:
        import fastavro  # noqa: F401
    except ImportError:
        raise RunError(
            "TG-521", "the codec for Avro is not installed", hint="pip install 'tidegate[kafka]'."
        ) from None


# Reading


@dataclass(frozen=True)
class AvroDecoder:
    """Makes JSON of the records of a source; the schema is given, or each record says which."""

    columns: pa.Schema
    schema: str | None
    registry: Registry | None

    def texts(self, values: Sequence[bytes]) -> tuple[list[bytes], list[str | None]]:
        """The texts of records, and why they are none."""
        texts: list[bytes] = []
        reasons: list[str | None] = []
        writers: dict[int | None, _Writer] = {}
        for value in values:
            try:
                texts.append(self._text(value, writers))
                reasons.append(None)
            except NoRecord as error:
                # What begins like this is no JSON.
                texts.append(b"avro " + value.hex().encode())
                reasons.append(str(error))
        return texts, reasons

    def _text(self, value: bytes, writers: dict[int | None, _Writer]) -> bytes:
        from fastavro import schemaless_reader

        number, body = None, value
        if self.registry is not None:
            if len(value) < _PREFIX or value[:1] != _MAGIC:
                raise NoRecord("the record does not begin with the number of a schema")
            number, body = int.from_bytes(value[1:_PREFIX], "big"), value[_PREFIX:]
        if number not in writers:
            writers[number] = _writer(self, number)
        schema = writers[number]
        if schema.misfit is not None:
            raise NoRecord(schema.misfit)
        rest = io.BytesIO(body)
        try:
            record: Any = schemaless_reader(rest, schema.parsed, None)
            text = json.dumps(record, default=_plain, ensure_ascii=False).encode()
        except Exception:
            # Whatever the codec trips over: the bytes are not what the schema says.
            raise NoRecord("not a record of the Avro schema") from None
        if rest.tell() != len(body):
            raise NoRecord("bytes after the record of the Avro schema")
        return text


def _plain(value: Any) -> str:
    """What JSON has no value for, as Spark reads it for a column of the type."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return value.isoformat()
    return str(value)


@dataclass(frozen=True)
class _Writer:
    """A schema that records were written with, and why its records cannot be rows."""

    parsed: Any
    misfit: str | None


_writers: dict[tuple[AvroDecoder, int | None], _Writer] = {}


def _writer(decoder: AvroDecoder, number: int | None) -> _Writer:
    """The schema of a record; what a number stands for never changes."""
    key = (decoder, number)
    if key not in _writers:
        if number is None:
            text = decoder.schema
        else:
            assert decoder.registry is not None, "numbers are of a registry"
            text = decoder.registry.schema(number)
        if text is None:
            # It may be registered a moment later: not remembered.
            raise NoRecord(f"the registry has no schema {number}")
        _writers[key] = _judged(text, decoder.columns)
    return _writers[key]


def _judged(text: str, columns: pa.Schema) -> _Writer:
    from fastavro import parse_schema

    names: dict[str, Any] = {}
    try:
        parsed = parse_schema(json.loads(text), names)
    except Exception as error:
        return _Writer(None, f"the Avro schema is not one ({type(error).__name__})")
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        return _Writer(None, "the Avro schema is not that of a record")
    return _Writer(parsed, _misfit(parsed, pa.struct(list(columns)), "", names))


def schema_problem(text: str) -> str | None:
    """What is wrong with the text of a schema, without the codec."""
    try:
        found = json.loads(text)
    except ValueError:
        return "it is not JSON"
    if not isinstance(found, dict) or found.get("type") != "record" or "fields" not in found:
        return 'it is not the schema of a record: {"type": "record", "name": …, "fields": […]}'
    return None


def _misfit(schema: Any, kind: pa.DataType, name: str, names: dict[str, Any]) -> str | None:
    """Why values of a schema cannot be those of a column, as far as JSON would hide it."""
    if isinstance(schema, list):
        found = (_misfit(branch, kind, name, names) for branch in schema if branch != "null")
        return next((reason for reason in found if reason is not None), None)
    if isinstance(schema, str):
        if schema in names:
            return _misfit(names[schema], kind, name, names)
        schema = {"type": schema}
    what, logical = schema["type"], schema.get("logicalType")
    if not isinstance(what, str):
        return _misfit(what, kind, name, names)
    inner = _inner(schema, kind, name)
    if inner is not None:
        found = (_misfit(*part, names) for part in inner)
        return next((reason for reason in found if reason is not None), None)
    return _plain_misfit(what, logical, kind, name)


def _inner(
    schema: dict[str, Any], kind: pa.DataType, name: str
) -> Iterator[tuple[Any, pa.DataType, str]] | None:
    """The parts of a nested value; None if it is not the same kind of nesting."""
    what = schema["type"]
    if what == "record" and pa.types.is_struct(kind):
        types = {item.name.lower(): item.type for item in kind}
        before = f"{name}." if name else ""
        fields = ((item["name"], item["type"]) for item in schema["fields"])
        known = ((own, inner) for own, inner in fields if own.lower() in types)
        return ((inner, types[own.lower()], before + own) for own, inner in known)
    if what == "array" and pa.types.is_list(kind):
        return iter([(schema["items"], kind.value_type, name)])
    if what == "map" and pa.types.is_map(kind):
        return iter([(schema["values"], kind.item_type, name)])
    return None


def _plain_misfit(what: str, logical: str | None, kind: pa.DataType, name: str) -> str | None:
    is_binary = what in _BINARY and logical != "decimal"
    if pa.types.is_binary(kind):
        return None if is_binary else f"{name} is BINARY, and in the Avro schema {logical or what}"
    if is_binary and not (pa.types.is_struct(kind) or pa.types.is_list(kind)):
        return f"{name} is {what} in the Avro schema: declare it as BINARY"
    if pa.types.is_temporal(kind) and what in ("int", "long", "float", "double"):
        wanted = "date" if pa.types.is_date(kind) else "timestamp"
        if logical is None or wanted not in logical or "nanos" in logical:
            return f"{name} is a {wanted}, and in the Avro schema {logical or what}"
    return None


# Writing


def avro_schema(name: str, columns: pa.Schema) -> dict[str, Any]:
    """The schema of rows; ValueError says what cannot be written."""
    record = re.sub(r"\W", "_", name, flags=re.ASCII)
    record = record if _NAME.fullmatch(record) else f"_{record}"
    return _avro_record(pa.struct(list(columns)), record, "")


def _avro_type(kind: pa.DataType, record: str, shown: str) -> Any:
    types = pa.types
    if types.is_struct(kind):
        return _avro_record(kind, record, shown)
    if types.is_list(kind):
        return {"type": "array", "items": _nullable(kind.value_type, record, shown)}
    if types.is_map(kind):
        if not types.is_string(kind.key_type):
            raise ValueError(f"{shown} is a MAP whose keys are not STRING")
        return {"type": "map", "values": _nullable(kind.item_type, record, shown)}
    if types.is_decimal(kind):
        sizes = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **sizes}
    if types.is_timestamp(kind):
        logical = "timestamp-micros" if kind.tz is not None else "local-timestamp-micros"
        return {"type": "long", "logicalType": logical}
    if types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    for fits, what in _PLAIN:
        if fits(kind):
            return what
    raise ValueError(f"{shown} has no type in Avro")


def _avro_record(kind: pa.DataType, record: str, shown: str) -> dict[str, Any]:
    fields = []
    for item in kind:
        if not _NAME.fullmatch(item.name):
            raise ValueError(f"{item.name!r} is no name in Avro")
        place = f"{shown}.{item.name}" if shown else item.name
        kinds = _nullable(item.type, f"{record}_{item.name}", place)
        fields.append({"name": item.name, "type": kinds, "default": None})
    return {"type": "record", "name": record, "fields": fields}


def _nullable(kind: pa.DataType, record: str, shown: str) -> list[Any]:
    return ["null", _avro_type(kind, record, shown)]


def _is_small(kind: pa.DataType) -> bool:
    return kind in (pa.int8(), pa.int16(), pa.int32())


_PLAIN = (
    (pa.types.is_boolean, "boolean"),
    (_is_small, "int"),
    (pa.types.is_int64, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_binary, "bytes"),
)


@dataclass(frozen=True)
class AvroEncoder:
    """Makes records of rows; those of a registry begin with the number of their schema."""

    schema: str
    number: int | None

    def values(self, rows: pa.Table) -> list[bytes | None]:
        """The records of rows; None for those that go."""
        from fastavro import parse_schema

        parsed = parse_schema(json.loads(self.schema))
        gone = rows.column(GONE).to_pylist()
        written = rows.drop_columns([KEY, GONE])
        records = _as_numbers(written).to_pylist(maps_as_pydicts="strict")
        pairs = zip(records, gone, strict=True)
        return [None if is_gone else self._value(record, parsed) for record, is_gone in pairs]

    def _value(self, record: dict[str, Any], parsed: Any) -> bytes:
        from fastavro import schemaless_writer

        out = io.BytesIO()
        if self.number is not None:
            out.write(_MAGIC + self.number.to_bytes(_PREFIX - 1, "big"))
        schemaless_writer(out, parsed, record)
        return out.getvalue()


def _as_numbers(rows: pa.Table) -> pa.Table:
    """Times as numbers: Python has no years beyond 9999."""
    for place, item in enumerate(rows.schema):
        number = pa.int32() if pa.types.is_date(item.type) else pa.int64()
        if pa.types.is_temporal(item.type):
            rows = rows.set_column(place, item.name, rows.column(place).cast(number))
    return rows


@dataclass
class AvroWriter:
    """Spools the keys and records of the rows of a task."""

    inner: Any
    encoder: AvroEncoder

    def add(self, rows: pa.Table) -> None:
        values = pa.array(self.encoder.values(rows), pa.binary())
        self.inner.add(pa.table({"key": rows.column(KEY), "value": values}))

    def finish(self) -> list[str]:
        return list(self.inner.finish())


@dataclass(frozen=True)
class AvroWriterFactory:
    """Opens stagers in tasks."""

    inner: Any
    encoder: AvroEncoder

    def open(self, stamp: str, task: int) -> AvroWriter:
        return AvroWriter(self.inner.open(stamp, task), self.encoder)
