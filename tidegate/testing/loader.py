"""Case files: what a file says becomes a Case, or a TG-701 that names the file and the field."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tidegate.columns import OP, OPS
from tidegate.errors import did_you_mean
from tidegate.testing.case import (
    KEYED_KINDS,
    KINDS,
    LATENESS,
    LOOKUP_KINDS,
    WATERMARK_MODELS,
    Add,
    Case,
    CaseSource,
    EndOfInput,
    LateReference,
    Row,
    Step,
)
from tidegate.testing.fields import Fields, read_document
from tidegate.testing.marks import read_marks
from tidegate.testing.rows import fit_rows, rows_from
from tidegate.testing.script_file import testable
from tidegate.testing.steps import expects, read_steps

# Told to people, never run.
_REMARKS = ("origin", "license", "engine", "area", "tags", "notes", "portable")
_COMMON = (
    "name",
    "sources",
    "watermark_model",
    "end_of_input",
    "ordered",
    "steps",
    "lateness",
    "expected_rows",
    "expected_rows_file",
    "expected_changelog",
    "late_rows",
    "partially_late_rows",
    "skip",
    *_REMARKS,
)
_QUERY_FIELDS = (*_COMMON, "query", "query_neutral", "emit", "allowed_lateness_ms")
_SCRIPT_FIELDS = (*_COMMON, "script", "script_file", "stream")
_SOURCE_FIELDS = (
    "name",
    "kind",
    "schema",
    "time_column",
    "watermark_delay_ms",
    "primary_key",
    "rows",
    "rows_file",
    "explicit_watermarks",
)
_SCRIPT_SOURCE_FIELDS = ("name", "rows", "rows_file")
# What becomes of late rows: none come, they are dropped, windows stay open, or fire once more.


def load_case(path: Path) -> Case:
    """Read one case file."""
    raw = read_document(path)
    scripted = isinstance(raw, dict) and bool({"script", "script_file"} & set(raw))
    fields = Fields.of(path, "", raw, _SCRIPT_FIELDS if scripted else _QUERY_FIELDS)
    sources = _sources(fields, scripted)
    steps: tuple[Step, ...] = ()
    if fields.has("steps"):
        steps = read_steps(fields, {source.name.lower(): source for source in sources}, scripted)
    query = None if scripted else fields.exactly_one("query", "query_neutral")
    flush = fields.choice("end_of_input", ("flush", "none"), "none" if steps else "flush")
    for remark in _REMARKS:
        if remark != "tags":
            fields.text_or_none(remark)
    case = Case(
        name=fields.text_or_none("name") or path.stem,
        path=path,
        sources=sources,
        query=fields.text(query) if query is not None else None,
        script=_script(fields) if scripted else None,
        stream=fields.text("stream") if scripted else None,
        neutral=query == "query_neutral",
        emit=fields.choice("emit", ("window_close", "update", "changelog")),
        flush=flush == "flush",
        late_is_none=fields.choice("lateness", LATENESS, "none") == "none",
        allowed_lateness_ms=fields.whole("allowed_lateness_ms"),
        watermark_model=fields.choice("watermark_model", WATERMARK_MODELS) or "per_batch",
        ordered=fields.flag("ordered"),
        folds_spaces=".slt" in (fields.text_or_none("origin") or ""),
        steps=steps,
        expected_rows=rows_from(fields, "expected_rows", "expected_rows_file"),
        expected_changelog=_changelog(fields),
        late_rows=_late_rows(fields, {source.name.lower() for source in sources}, scripted),
        skip=fields.text_or_none("skip"),
    )
    _require_sense(fields, case)
    return case


def _script(fields: Fields) -> str:
    """The SQL of a case: its own, or that of a file, whose sources take the rows of the case."""
    if fields.exactly_one("script", "script_file") == "script":
        return fields.text("script")
    path = fields.file.parent / fields.text("script_file")
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise fields.error("script_file", f"cannot read {path}: {reason}") from None
    return testable(text, str(path))


def _require_sense(fields: Fields, case: Case) -> None:
    """What no single field can be blamed for."""
    finals = (case.expected_rows, case.expected_changelog, case.late_rows)
    if all(final is None for final in finals) and not any(expects(step) for step in case.steps):
        raise fields.error(
            "", "the case expects nothing", "add expected_rows, or a step with expect_all."
        )
    if case.script is None and not case.sources:
        raise fields.error("sources", "expected at least one source")
    ended = False
    for index, step in enumerate(case.steps):
        if ended and isinstance(step, Add | EndOfInput):
            raise fields.error(f"steps[{index}]", "nothing can be added after end_of_input")
        ended = ended or isinstance(step, EndOfInput)
    for index, source in enumerate(case.sources):
        _require_steps_agree(fields, case, source, f"sources[{index}].rows")
    for index, late in enumerate(case.late_rows or ()):
        if isinstance(late, LateReference):
            count = len(case.rows_of(late.source))
            if late.row_index >= count:
                message = f"expected an index below {count}, found {late.row_index}"
                raise fields.error(f"late_rows[{index}].row_index", message)


def _require_steps_agree(fields: Fields, case: Case, source: CaseSource, where: str) -> None:
    """With steps the rows come from them; rows of the source may only repeat what they add."""
    if not case.steps or not source.rows:
        return
    added = case.rows_of(source.name)
    if added == source.rows or (not added and source.is_lookup):
        return
    raise fields.error(
        where,
        f"expected the {len(added)} rows that the steps add to {source.name}, found other rows",
        "with steps, rows come from add; leave out the rows of the source.",
    )


def _sources(fields: Fields, scripted: bool) -> tuple[CaseSource, ...]:
    if not fields.has("sources"):
        return ()
    known = _SCRIPT_SOURCE_FIELDS if scripted else _SOURCE_FIELDS
    found: dict[str, CaseSource] = {}
    for index, raw in enumerate(fields.sequence("sources")):
        item = Fields.of(fields.file, f"sources[{index}]", raw, known)
        source = _scripted_source(item) if scripted else _source(item)
        if source.name.lower() in found:
            raise item.error("name", f"{source.name} is the name of two sources")
        found[source.name.lower()] = source
    return tuple(found.values())


def _scripted_source(item: Fields) -> CaseSource:
    return CaseSource(item.text("name"), rows=rows_from(item, "rows", "rows_file") or ())


def _source(item: Fields) -> CaseSource:
    kind = item.choice("kind", KINDS, "stream")
    assert kind is not None, "kind has a default"
    columns = _columns(item)
    names = [name for name, _ in columns]
    time_column = item.text_or_none("time_column")
    _require_column(item, "time_column", time_column, names)
    key = item.texts("primary_key")
    for name in key:
        _require_column(item, "primary_key", name, names)
    if kind in KEYED_KINDS and not key:
        raise item.error("primary_key", f"expected the key of a source of kind {kind}")
    if kind in LOOKUP_KINDS and time_column is not None:
        raise item.error("time_column", "a lookup table has no event time")
    source = CaseSource(
        item.text("name"),
        kind,
        columns,
        time_column,
        item.whole("watermark_delay_ms"),
        key,
        marks=read_marks(item, time_column),
    )
    rows = rows_from(item, "rows", "rows_file") or ()
    return replace(source, rows=fit_rows(item.file, f"{item.where}.rows", rows, source))


def _columns(item: Fields) -> tuple[tuple[str, str], ...]:
    columns: list[tuple[str, str]] = []
    for index, raw in enumerate(item.sequence("schema")):
        where = f"{item.where}.schema[{index}]"
        column = Fields.of(item.file, where, raw, ("name", "type"))
        columns.append((column.text("name"), column.text("type")))
    if not columns:
        raise item.error("schema", "expected at least one column")
    return tuple(columns)


def _require_column(item: Fields, field: str, name: str | None, names: list[str]) -> None:
    if name is not None and name.lower() not in (known.lower() for known in names):
        hint = did_you_mean(name, names, "columns")
        raise item.error(field, f"{name} is not a column of the source", hint)


def _changelog(fields: Fields) -> tuple[Row, ...] | None:
    if not fields.has("expected_changelog"):
        return None
    rows = fields.rows("expected_changelog")
    for index, row in enumerate(rows):
        if row.get(OP) not in OPS:
            where = f"expected_changelog[{index}].{OP}"
            raise fields.error(where, f"expected one of {', '.join(OPS)}")
    return rows


def _late_rows(
    fields: Fields, sources: set[str], scripted: bool
) -> tuple[Row | LateReference, ...] | None:
    """Each either a row, or where a row stands: source and row_index."""
    if not fields.has("late_rows"):
        return None
    found: list[Row | LateReference] = []
    for index, row in enumerate(fields.rows("late_rows")):
        if "row_index" not in row:
            found.append(row)
            continue
        # Whatever else stands there says why.
        item = Fields.of(fields.file, f"late_rows[{index}]", row, tuple(row))
        name = item.text("source")
        if name.lower() not in sources and not scripted:
            hint = did_you_mean(name, sources, "sources")
            raise item.error("source", f"there is no source {name}", hint)
        found.append(LateReference(name, item.whole("row_index")))
    return tuple(found)
