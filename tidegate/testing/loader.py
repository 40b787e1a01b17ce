"""Read and validate case files. Errors are TG-701 and name the file and the field."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tidegate.columns import OP, OPS
from tidegate.errors import did_you_mean
from tidegate.testing.case import (
    KEYED_KINDS,
    KINDS,
    LOOKUP_KINDS,
    WATERMARK_MODELS,
    Add,
    Case,
    CaseSource,
    DeleteAll,
    EndOfInput,
    ExpectAll,
    ExpectDelta,
    ExpectDropped,
    ExpectNew,
    ExpectWatermark,
    LateReference,
    Restart,
    Row,
    Step,
)
from tidegate.testing.declare import testable_script
from tidegate.testing.fields import (
    CaseError,
    CaseFields,
    as_rows,
    describe,
    read_document,
    read_explicit_watermarks,
    read_json_lines,
)

# ---- Rows of a case file


def fit_rows(file: Path, location: str, rows: Iterable[Row], source: CaseSource) -> tuple[Row, ...]:
    """Check rows against the declared columns; remove the +I of append-only sources."""
    return tuple(_fit_row(file, f"{location}[{i}]", row, source) for i, row in enumerate(rows))


def _fit_row(file: Path, location: str, row: Row, source: CaseSource) -> Row:
    names = [name for name, _ in source.columns]
    columns = {name.lower() for name in names}
    for name in row:
        if name != OP and name.lower() not in columns:
            hint = did_you_mean(name, names, "columns")
            raise CaseError(file, f"{location}.{name}", f"{source.name} has no such column", hint)
    if OP not in row:
        return row
    if row[OP] not in OPS:
        message = f"expected one of {', '.join(OPS)}, found {row[OP]}"
        raise CaseError(file, f"{location}.{OP}", message)
    if source.kind != "stream":
        return row
    if row[OP] != "+I":
        message = f"a source of kind {source.kind} accepts only +I, found {row[OP]}"
        hint = "set kind: changelog for rows with retractions."
        raise CaseError(file, f"{location}.{OP}", message, hint)
    return {name: value for name, value in row.items() if name != OP}


def rows_from(item: CaseFields, inline: str, file: str) -> tuple[Row, ...] | None:
    """Return rows from the case or from a separate file; None if it has neither field."""
    if item.has(inline) and item.has(file):
        raise item.error(inline, f"expected {inline} or {file}, found both")
    if item.has(file):
        return _rows_file(item, file)
    return item.rows(inline) if item.has(inline) else None


def _rows_file(item: CaseFields, field: str) -> tuple[Row, ...]:
    """Read JSON lines from a file in the directory of the case or in one above it."""
    name = item.text(field)
    for directory in item.file.resolve().parents:
        if (directory / name).is_file():
            return tuple(read_json_lines(directory / name))
    raise item.error(field, f"file {name} was not found next to the case or in a parent directory")


# ---- Steps

WEIGHT = "_weight"
_WEIGHTS = frozenset({WEIGHT, "_diff", "_delta", "_sign", "_count"})
ACTIONS = (
    "add",
    "expect_new",
    "expect_all",
    "expect_delta",
    "expect_dropped",
    "expect_watermark_ms",
    "restart",
    "end_of_input",
    "delete_all",
)
Sources = Mapping[str, CaseSource]


def read_steps(fields: CaseFields, sources: Sources, scripted: bool) -> tuple[Step, ...]:
    """Read all steps. In a case with a script they may name sources that the script declares."""
    steps: list[Step] = []
    for index, raw in enumerate(fields.sequence("steps")):
        item = CaseFields.from_value(fields.file, f"steps[{index}]", raw, ACTIONS)
        if len(item.values) != 1:
            names = ", ".join(item.values) or "none"
            raise item.error("", f"expected one action, found {names}")
        steps.append(_READERS[next(iter(item.values))](item, sources, scripted))
    if not steps:
        raise fields.error("steps", "expected at least one step")
    return tuple(steps)


def is_expectation(step: Step) -> bool:
    """Return whether a step compares the output."""
    kinds = ExpectNew | ExpectAll | ExpectDelta | ExpectDropped | ExpectWatermark
    return isinstance(step, kinds)


def _add(item: CaseFields, sources: Sources, scripted: bool) -> Step:
    """Read a list of {source, rows}, or a mapping from source to rows."""
    raw = item.values["add"]
    entries = _expand_mapping(raw) if isinstance(raw, Mapping) else item.sequence("add")
    step_rows: list[tuple[str, tuple[Row, ...]]] = []
    for index, entry in enumerate(entries):
        location = f"{item.location}.add[{index}]"
        part = CaseFields.from_value(item.file, location, entry, ("source", "rows"))
        name = _source_name(part, "source", part.text("source"), sources, scripted)
        rows = part.rows("rows")
        if not scripted:
            rows = fit_rows(item.file, f"{location}.rows", rows, sources[name.lower()])
        step_rows.append((name, rows))
    return Add(tuple(step_rows))


def _expand_mapping(raw: Mapping[str, object]) -> list[dict[str, object]]:
    return [{"source": name, "rows": rows} for name, rows in raw.items()]


def _source_name(part: CaseFields, field: str, name: str, sources: Sources, scripted: bool) -> str:
    source = sources.get(name.lower())
    if source is not None:
        return source.name
    if scripted:
        return name
    hint = did_you_mean(name, [item.name for item in sources.values()], "sources")
    raise part.error(field, f"unknown source {name}", hint)


def _expect_new(item: CaseFields, sources: Sources, scripted: bool) -> Step:
    return ExpectNew(item.rows("expect_new"))


def _expect_all(item: CaseFields, sources: Sources, scripted: bool) -> Step:
    return ExpectAll(item.rows("expect_all"))


def _expect_delta(item: CaseFields, sources: Sources, scripted: bool) -> Step:
    location = f"{item.location}.expect_delta"
    rows = as_rows(item.file, location, item.values["expect_delta"])
    rows = tuple(_rename_weight(row) for row in rows)
    for index, row in enumerate(rows):
        if (OP in row) == (WEIGHT in row):
            raise CaseError(item.file, f"{location}[{index}]", f"expected {OP} or {WEIGHT}")
        if WEIGHT in row and (not isinstance(row[WEIGHT], int) or row[WEIGHT] == 0):
            message = f"expected an integer other than 0, found {describe(row[WEIGHT])}"
            raise CaseError(item.file, f"{location}[{index}].{WEIGHT}", message)
        if OP in row and str(row[OP])[:1] not in ("+", "-"):
            message = f"expected +I, -U, +U, -D, + or -, found {describe(row[OP])}"
            raise CaseError(item.file, f"{location}[{index}].{OP}", message)
    return ExpectDelta(rows)


def _rename_weight(row: Row) -> Row:
    """Accept the names that other systems use for the weight of a row."""
    return {WEIGHT if name in _WEIGHTS else name: value for name, value in row.items()}


def _expect_dropped(item: CaseFields, sources: Sources, scripted: bool) -> Step:
    if not item.has("expect_dropped"):
        raise item.error("expect_dropped", "expected a number of rows")
    return ExpectDropped(item.non_negative_integer("expect_dropped"))


def _expect_watermark(item: CaseFields, sources: Sources, scripted: bool) -> Step:
    value = item.values["expect_watermark_ms"]
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        message = f"expected milliseconds since 1970 or null, found {describe(value)}"
        raise item.error("expect_watermark_ms", message)
    return ExpectWatermark(value)


def _restart(item: CaseFields, sources: Sources, scripted: bool) -> Step:
    _require_true(item, "restart")
    return Restart()


def _end_of_input(item: CaseFields, sources: Sources, scripted: bool) -> Step:
    _require_true(item, "end_of_input")
    return EndOfInput()


def _require_true(item: CaseFields, name: str) -> None:
    if not item.flag(name):
        raise item.error(name, "expected true; remove the step otherwise")


def _delete_all(item: CaseFields, sources: Sources, scripted: bool) -> Step:
    """Read the name of a source, a list of names, or true for all sources with retractions."""
    raw = item.values["delete_all"]
    if isinstance(raw, Mapping):
        raw = raw.get("source")
    names = [raw] if isinstance(raw, str) else raw
    if raw is True:
        names = [source.name for source in sources.values() if source.kind != "stream"]
    if isinstance(names, list):
        names = [name.get("source") if isinstance(name, Mapping) else name for name in names]
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise item.error("delete_all", f"expected the name of a source, found {describe(raw)}")
    return DeleteAll(
        tuple(_source_name(item, "delete_all", name, sources, scripted) for name in names)
    )


_READERS: dict[str, Callable[[CaseFields, Sources, bool], Step]] = {
    "add": _add,
    "expect_new": _expect_new,
    "expect_all": _expect_all,
    "expect_delta": _expect_delta,
    "expect_dropped": _expect_dropped,
    "expect_watermark_ms": _expect_watermark,
    "restart": _restart,
    "end_of_input": _end_of_input,
    "delete_all": _delete_all,
}


# ---- The fields of a case

# Fields without an effect.
_REMARKS = ("origin", "license", "tags", "notes")
_COMMON = (
    "name",
    "sources",
    "watermark_model",
    "end_of_input",
    "ordered",
    "steps",
    "expected_rows",
    "expected_rows_file",
    "expected_changelog",
    "late_rows",
    "skip",
    *_REMARKS,
)
_QUERY_FIELDS = (*_COMMON, "query", "emit", "state_ttl", "allowed_lateness_ms")
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


def load_case(path: Path) -> Case:
    """Read one case file."""
    return read_case(path, read_document(path))


def read_case(path: Path, document: object) -> Case:
    """Read a case from a parsed document; errors and relative paths refer to the file `path`."""
    scripted = isinstance(document, dict) and bool({"script", "script_file"} & set(document))
    fields = CaseFields.from_value(
        path, "", document, _SCRIPT_FIELDS if scripted else _QUERY_FIELDS
    )
    sources = _sources(fields, scripted)
    steps: tuple[Step, ...] = ()
    if fields.has("steps"):
        steps = read_steps(fields, {source.name.lower(): source for source in sources}, scripted)
    flush = fields.choice("end_of_input", ("flush", "none"), "none" if steps else "flush")
    for remark in _REMARKS:
        if remark != "tags":
            fields.text_or_none(remark)
    case = Case(
        name=fields.text_or_none("name") or path.stem,
        path=path,
        sources=sources,
        query=None if scripted else fields.text("query"),
        script=_script(fields) if scripted else None,
        stream=fields.text("stream") if scripted else None,
        emit=fields.choice("emit", ("window_close", "update", "changelog")),
        state_ttl=fields.text_or_none("state_ttl"),
        flush=flush == "flush",
        allowed_lateness_ms=fields.non_negative_integer("allowed_lateness_ms"),
        watermark_model=fields.choice("watermark_model", WATERMARK_MODELS) or "per_batch",
        ordered=fields.flag("ordered"),
        steps=steps,
        expected_rows=rows_from(fields, "expected_rows", "expected_rows_file"),
        expected_changelog=_changelog(fields),
        late_rows=_late_rows(fields, {source.name.lower() for source in sources}, scripted),
        skip=fields.text_or_none("skip"),
    )
    _check_consistency(fields, case)
    return case


def _script(fields: CaseFields) -> str:
    """Return the script of a case, or that of a file with the sources on connector memory."""
    if fields.exactly_one("script", "script_file") == "script":
        return fields.text("script")
    path = fields.file.parent / fields.text("script_file")
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise fields.error("script_file", f"cannot read {path}: {reason}") from None
    return testable_script(text, str(path))


def _check_consistency(fields: CaseFields, case: Case) -> None:
    """Check conditions that involve several fields."""
    final_expectations = (case.expected_rows, case.expected_changelog, case.late_rows)
    if all(expectation is None for expectation in final_expectations) and not any(
        is_expectation(step) for step in case.steps
    ):
        raise fields.error(
            "", "the case has no expectation", "add expected_rows, or a step with expect_all."
        )
    if case.script is None and not case.sources:
        raise fields.error("sources", "expected at least one source")
    has_ended = False
    for index, step in enumerate(case.steps):
        if has_ended and isinstance(step, Add | EndOfInput):
            raise fields.error(f"steps[{index}]", "the input has already ended")
        has_ended = has_ended or isinstance(step, EndOfInput)
    for index, source in enumerate(case.sources):
        _check_rows_of_source(fields, case, source, f"sources[{index}].rows")
    for index, late_row in enumerate(case.late_rows or ()):
        if isinstance(late_row, LateReference):
            count = len(case.rows_of(late_row.source))
            if late_row.row_index >= count:
                message = f"expected an index below {count}, found {late_row.row_index}"
                raise fields.error(f"late_rows[{index}].row_index", message)


def _check_rows_of_source(
    fields: CaseFields, case: Case, source: CaseSource, location: str
) -> None:
    """Check that a source of a case with steps has no other rows than those the steps add."""
    if not case.steps or not source.rows:
        return
    step_rows = case.rows_of(source.name)
    if step_rows == source.rows or (not step_rows and source.is_lookup):
        return
    raise fields.error(
        location,
        f"the rows differ from the {len(step_rows)} rows that the steps add to {source.name}",
        "remove the rows of the source; the steps add them.",
    )


def _sources(fields: CaseFields, scripted: bool) -> tuple[CaseSource, ...]:
    if not fields.has("sources"):
        return ()
    field_names = _SCRIPT_SOURCE_FIELDS if scripted else _SOURCE_FIELDS
    sources: dict[str, CaseSource] = {}
    for index, raw in enumerate(fields.sequence("sources")):
        item = CaseFields.from_value(fields.file, f"sources[{index}]", raw, field_names)
        source = _source_of_script(item) if scripted else _source(item)
        if source.name.lower() in sources:
            raise item.error("name", f"duplicate source {source.name}")
        sources[source.name.lower()] = source
    return tuple(sources.values())


def _source_of_script(item: CaseFields) -> CaseSource:
    return CaseSource(item.text("name"), rows=rows_from(item, "rows", "rows_file") or ())


def _source(item: CaseFields) -> CaseSource:
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
        raise item.error("primary_key", f"required for a source of kind {kind}")
    if kind in LOOKUP_KINDS and time_column is not None:
        raise item.error("time_column", "a lookup table has no event time")
    source = CaseSource(
        item.text("name"),
        kind,
        columns,
        time_column,
        item.non_negative_integer("watermark_delay_ms"),
        key,
        explicit_watermarks=read_explicit_watermarks(item, time_column),
    )
    rows = rows_from(item, "rows", "rows_file") or ()
    return replace(source, rows=fit_rows(item.file, f"{item.location}.rows", rows, source))


def _columns(item: CaseFields) -> tuple[tuple[str, str], ...]:
    columns: list[tuple[str, str]] = []
    for index, raw in enumerate(item.sequence("schema")):
        location = f"{item.location}.schema[{index}]"
        column = CaseFields.from_value(item.file, location, raw, ("name", "type"))
        columns.append((column.text("name"), column.text("type")))
    if not columns:
        raise item.error("schema", "expected at least one column")
    return tuple(columns)


def _require_column(item: CaseFields, field: str, name: str | None, names: list[str]) -> None:
    if name is not None and name.lower() not in (column.lower() for column in names):
        hint = did_you_mean(name, names, "columns")
        raise item.error(field, f"{name} is not a column of the source", hint)


def _changelog(fields: CaseFields) -> tuple[Row, ...] | None:
    if not fields.has("expected_changelog"):
        return None
    rows = fields.rows("expected_changelog")
    for index, row in enumerate(rows):
        if row.get(OP) not in OPS:
            location = f"expected_changelog[{index}].{OP}"
            raise fields.error(location, f"expected one of {', '.join(OPS)}")
    return rows


def _late_rows(
    fields: CaseFields, sources: set[str], scripted: bool
) -> tuple[Row | LateReference, ...] | None:
    """Read late rows: each is a row, or a reference to one by source and row_index."""
    if not fields.has("late_rows"):
        return None
    rows: list[Row | LateReference] = []
    for index, row in enumerate(fields.rows("late_rows")):
        if "row_index" not in row:
            rows.append(row)
            continue
        # Other fields are remarks, such as the reason.
        item = CaseFields.from_value(fields.file, f"late_rows[{index}]", row, tuple(row))
        name = item.text("source")
        if name.lower() not in sources and not scripted:
            hint = did_you_mean(name, sources, "sources")
            raise item.error("source", f"unknown source {name}", hint)
        rows.append(LateReference(name, item.non_negative_integer("row_index")))
    return tuple(rows)


# ---- Finding and skipping cases

SUFFIXES = (".json", ".yaml", ".yml")
SKIPS = "skips.yaml"
# Every case has at least one of these fields. A text search finds them in malformed files, too.
_CASE_FIELD = re.compile(r"\b(query|script|script_file|sources|steps|expected_rows)\b[\"']?\s*:")


def find_cases(paths: Sequence[Path]) -> list[Path]:
    """Return the case files below these paths, each once, in order."""
    cases: dict[Path, Path] = {}
    for path in paths:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if _is_case_file(file, path))
        elif path.is_file():
            files = [path]
        else:
            raise CaseError(path, "", "no such file or directory")
        for file in files:
            cases.setdefault(file.resolve(), file)
    return list(cases.values())


def _is_case_file(file: Path, directory: Path) -> bool:
    """Return whether a file in a directory is a case, rather than data."""
    is_hidden = any(part.startswith(".") for part in file.relative_to(directory).parts)
    if is_hidden or file.suffix not in SUFFIXES or file.name == SKIPS or not file.is_file():
        return False
    try:
        return _CASE_FIELD.search(file.read_text("utf-8", errors="replace")) is not None
    except OSError:
        # Loading the case raises the error.
        return True


class Skips:
    """Names of cases to skip, with reasons, from `skips.yaml` next to the cases or above."""

    def __init__(self, extra: Path | None = None) -> None:
        self._by_directory: dict[Path, dict[str, str]] = {}
        self._extra = _read_skips(extra) if extra is not None else {}

    def apply(self, case: Case) -> Case:
        """Set the reason to skip a case; its own `skip` field has precedence."""
        if case.skip is not None:
            return case
        if case.name in self._extra:
            return replace(case, skip=self._extra[case.name])
        for directory in case.path.resolve().parents:
            reason = self._reasons(directory).get(case.name)
            if reason is not None:
                return replace(case, skip=reason)
        return case

    def _reasons(self, directory: Path) -> dict[str, str]:
        if directory not in self._by_directory:
            file = directory / SKIPS
            self._by_directory[directory] = _read_skips(file) if file.is_file() else {}
        return self._by_directory[directory]


def _read_skips(file: Path) -> dict[str, str]:
    raw = read_document(file)
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        message = f"expected a mapping from case to reason, found {describe(raw)}"
        raise CaseError(file, "", message)
    for name, reason in raw.items():
        if not isinstance(reason, str) or not reason.strip():
            raise CaseError(file, str(name), f"expected a reason, found {describe(reason)}")
    return {str(name): reason for name, reason in raw.items()}
