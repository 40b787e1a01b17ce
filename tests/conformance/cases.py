"""Find conformance cases and translate them to the format of `tidegate test`.

Other systems do not require an EMIT clause, a key or a state TTL in the places where Tidegate does.
A case therefore has a `query_neutral`, which becomes a query that Tidegate accepts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlglot import exp

from tidegate.errors import ScriptError
from tidegate.sql import statements as st
from tidegate.sql.expressions import conjuncts
from tidegate.sql.parser import parse_script
from tidegate.testing.case import Add, Case, CaseSource
from tidegate.testing.declare import declare
from tidegate.testing.fields import CaseError, read_document
from tidegate.testing.loader import find_cases, read_case

VARIABLE = "TIDEGATE_CONFORMANCE_DIR"
DEFAULT_DIRECTORY = Path(__file__).parents[3] / "shared" / "conformance"

LATENESS = ("none", "drops", "unclosed", "refires")
STATE_TTL = "36500 days"
# Queries without a bound for their state: joins, DISTINCT, set operations, OVER, row patterns.
_UNBOUNDED = frozenset({"TG-407", "TG-408", "TG-409", "TG-411", "TG-417", "TG-420"})
_NOT_BUILT = "TG-501"
_REMARKS = ("engine", "area", "portable", "partially_late_rows")
_PER_KEY = "per-key watermarks: Tidegate has one watermark per source partition"
# The suites use several names for the fields of an explicit watermark.
_ROW_INDEX = ("row_index", "after_row", "after_index", "after", "row", "index", "i")
_WATERMARK = ("watermark_ms", "watermark", "w")


def directory() -> Path | None:
    """Return the directory of the cases, or None if there is none."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    return DEFAULT_DIRECTORY if DEFAULT_DIRECTORY.is_dir() else None


def case_files() -> list[Path]:
    """Return the files of all cases; an empty list if there is no directory of cases."""
    root = directory()
    return find_cases([root / "cases"]) if root is not None else []


def folds_spaces(path: Path) -> bool:
    """Return whether the expected rows of a case have one space for each run of spaces.

    The files of sqllogictest (.slt), from which such cases originate, do not keep them.
    """
    document = read_document(path)
    return isinstance(document, Mapping) and ".slt" in str(document.get("origin"))


def load_conformance_case(path: Path) -> Case:
    """Read one conformance case. Cases in the format of `tidegate test` are accepted, too."""
    document = read_document(path)
    if not isinstance(document, dict):
        return read_case(path, document)
    lateness = document.get("lateness", "none")
    if lateness not in LATENESS:
        raise CaseError(path, "lateness", f"expected one of {', '.join(LATENESS)}")
    case = read_case(path, _translated(document))
    if lateness != "none":
        case = _in_one_epoch(case)
    return accepted_by_tidegate(case) if "query_neutral" in document else case


# ---- Fields


def _translated(document: Mapping[str, Any]) -> dict[str, Any]:
    """Rename and remove the fields that `tidegate test` does not have."""
    result = {
        name: value for name, value in document.items() if name not in (*_REMARKS, "lateness")
    }
    if "query_neutral" in result and "query" not in result:
        result["query"] = result.pop("query_neutral")
    if result.get("watermark_model") == "per_key":
        del result["watermark_model"]
        result.setdefault("skip", _PER_KEY)
    if isinstance(result.get("sources"), list):
        result["sources"] = [_source(source) for source in result["sources"]]
    _resolve_file(result, "expected_rows_file")
    return result


def _source(source: Any) -> Any:
    if not isinstance(source, Mapping):
        return source
    result = dict(source)
    _resolve_file(result, "rows_file")
    if result.get("explicit_watermarks") is not None:
        result["explicit_watermarks"] = explicit_watermarks(result["explicit_watermarks"])
    return result


def _resolve_file(fields: dict[str, Any], name: str) -> None:
    """Replace a path relative to the directory of the cases by an absolute path."""
    root = directory()
    if root is not None and fields.get(name) and (root / fields[name]).is_file():
        fields[name] = str((root / fields[name]).absolute())


def explicit_watermarks(marks: Any) -> Any:
    """Return a list of {row_index, watermark} from a mapping, pairs or mappings of other names."""
    entries = list(marks.items()) if isinstance(marks, Mapping) else marks
    return [_explicit_watermark(entry) for entry in entries] if _is_list(entries) else marks


def _explicit_watermark(entry: Any) -> Any:
    index: Any = None
    watermark: Any = None
    if isinstance(entry, Mapping):
        index = next((entry[name] for name in _ROW_INDEX if name in entry), None)
        watermark = next((entry[name] for name in _WATERMARK if name in entry), None)
    elif _is_list(entry) and len(entry) == 2:
        index, watermark = entry
    if isinstance(index, str) and index.lstrip("-").isdigit():
        index = int(index)
    return {"row_index": index, "watermark": watermark}


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _in_one_epoch(case: Case) -> Case:
    """Add all rows in one step, because splitting an epoch in two would change which are late."""
    if case.steps:
        return case
    rows = tuple(
        (source.name, source.rows)
        for source in case.sources
        if source.rows and not source.is_lookup
    )
    return replace(case, steps=(Add(rows),))


# ---- Neutral queries


def accepted_by_tidegate(case: Case) -> Case:
    """Add the key, the state TTL or the EMIT clause that Tidegate requires for a neutral query.

    If Tidegate rejects EMIT CHANGES, the query runs without it: its final result is the same.
    """
    case = replace(case, sources=tuple(_with_version_key(case, item) for item in case.sources))
    result = _with_state_ttl(case)
    if case.emit in ("update", "changelog") and _rejections(result) - {_NOT_BUILT}:
        final = _with_state_ttl(replace(case, emit=None))
        if not _rejections(final) - {_NOT_BUILT}:
            return final
    return result


def _with_state_ttl(case: Case) -> Case:
    return replace(case, state_ttl=STATE_TTL) if _rejections(case) & _UNBOUNDED else case


def _rejections(case: Case) -> set[str]:
    """Return the codes of the errors with which Tidegate rejects a case."""
    try:
        declare(case)
    except ScriptError as error:
        return {item.code for item in error.errors}
    return set()


def _with_version_key(case: Case, source: CaseSource) -> CaseSource:
    """Use the columns that a temporal join compares as the key of its versioned source."""
    if source.primary_key or source.is_lookup:
        return source
    script = parse_script(f"CREATE STREAM result AS\n{case.query}")
    statement = script.statements[0] if script.statements else None
    if not isinstance(statement, st.CreateStream):
        return source
    for join in statement.query.tree.find_all(exp.Join):
        table = join.this
        named = isinstance(table, exp.Table) and table.name.lower() == source.name.lower()
        if named and table.args.get("version") is not None:
            names = (part.name for part in _compared(join) if part.table == table.alias_or_name)
            return replace(source, primary_key=tuple(dict.fromkeys(names)))
    return source


def _compared(join: exp.Join) -> Sequence[exp.Column]:
    """Return the columns that a join compares for equality."""
    equal = [part for part in conjuncts(join.args.get("on")) if isinstance(part, exp.EQ)]
    sides = [side for part in equal for side in (part.left, part.right)]
    return [side for side in sides if isinstance(side, exp.Column)]
