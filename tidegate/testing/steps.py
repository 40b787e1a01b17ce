"""The steps of a case: rows, expectations and restarts, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidegate.columns import OP
from tidegate.errors import did_you_mean
from tidegate.testing.case import (
    Add,
    CaseSource,
    DeleteAll,
    EndOfInput,
    ExpectAll,
    ExpectDelta,
    ExpectDropped,
    ExpectNew,
    ExpectWatermark,
    Restart,
    Row,
    Step,
)
from tidegate.testing.fields import CaseError, Fields, as_rows, shown
from tidegate.testing.rows import fit_rows

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


def read_steps(fields: Fields, sources: Sources, scripted: bool) -> tuple[Step, ...]:
    """Every step; those of a script may name sources that only the script knows."""
    steps: list[Step] = []
    for index, raw in enumerate(fields.sequence("steps")):
        item = Fields.of(fields.file, f"steps[{index}]", raw, ACTIONS)
        if len(item.values) != 1:
            names = ", ".join(item.values) or "none"
            raise item.error("", f"expected one action, found {names}")
        steps.append(_READERS[next(iter(item.values))](item, sources, scripted))
    if not steps:
        raise fields.error("steps", "expected at least one step")
    return tuple(steps)


def expects(step: Step) -> bool:
    """Whether a step can fail a case."""
    kinds = ExpectNew | ExpectAll | ExpectDelta | ExpectDropped | ExpectWatermark
    return isinstance(step, kinds)


def _add(item: Fields, sources: Sources, scripted: bool) -> Step:
    """A list of {source, rows}, or shorter a mapping from source to rows."""
    raw = item.values["add"]
    entries = _shorthand(raw) if isinstance(raw, Mapping) else item.sequence("add")
    added: list[tuple[str, tuple[Row, ...]]] = []
    for index, entry in enumerate(entries):
        where = f"{item.where}.add[{index}]"
        part = Fields.of(item.file, where, entry, ("source", "rows"))
        name = _source_name(part, "source", part.text("source"), sources, scripted)
        rows = part.rows("rows")
        if not scripted:
            rows = fit_rows(item.file, f"{where}.rows", rows, sources[name.lower()])
        added.append((name, rows))
    return Add(tuple(added))


def _shorthand(raw: Mapping[str, object]) -> list[dict[str, object]]:
    return [{"source": name, "rows": rows} for name, rows in raw.items()]


def _source_name(part: Fields, field: str, name: str, sources: Sources, scripted: bool) -> str:
    source = sources.get(name.lower())
    if source is not None:
        return source.name
    if scripted:
        return name
    hint = did_you_mean(name, [item.name for item in sources.values()], "sources")
    raise part.error(field, f"there is no source {name}", hint)


def _expect_new(item: Fields, sources: Sources, scripted: bool) -> Step:
    return ExpectNew(item.rows("expect_new"))


def _expect_all(item: Fields, sources: Sources, scripted: bool) -> Step:
    return ExpectAll(item.rows("expect_all"))


def _expect_delta(item: Fields, sources: Sources, scripted: bool) -> Step:
    where = f"{item.where}.expect_delta"
    rows = as_rows(item.file, where, item.values["expect_delta"])
    rows = tuple(_weighted(row) for row in rows)
    for index, row in enumerate(rows):
        if (OP in row) == (WEIGHT in row):
            raise CaseError(item.file, f"{where}[{index}]", f"expected {OP} or {WEIGHT}")
        if WEIGHT in row and (not isinstance(row[WEIGHT], int) or row[WEIGHT] == 0):
            message = f"expected a whole number other than 0, found {shown(row[WEIGHT])}"
            raise CaseError(item.file, f"{where}[{index}].{WEIGHT}", message)
        if OP in row and str(row[OP])[:1] not in ("+", "-"):
            message = f"expected +I, -U, +U, -D, + or -, found {shown(row[OP])}"
            raise CaseError(item.file, f"{where}[{index}].{OP}", message)
    return ExpectDelta(rows)


def _weighted(row: Row) -> Row:
    """Others call the weight of a row _diff or the like."""
    return {WEIGHT if name in _WEIGHTS else name: value for name, value in row.items()}


def _expect_dropped(item: Fields, sources: Sources, scripted: bool) -> Step:
    if not item.has("expect_dropped"):
        raise item.error("expect_dropped", "expected a number of rows")
    return ExpectDropped(item.whole("expect_dropped"))


def _expect_watermark(item: Fields, sources: Sources, scripted: bool) -> Step:
    value = item.values["expect_watermark_ms"]
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        message = f"expected milliseconds since 1970 or null, found {shown(value)}"
        raise item.error("expect_watermark_ms", message)
    return ExpectWatermark(value)


def _restart(item: Fields, sources: Sources, scripted: bool) -> Step:
    _require_true(item, "restart")
    return Restart()


def _end_of_input(item: Fields, sources: Sources, scripted: bool) -> Step:
    _require_true(item, "end_of_input")
    return EndOfInput()


def _require_true(item: Fields, name: str) -> None:
    if not item.flag(name):
        raise item.error(name, "expected true; leave the step out otherwise")


def _delete_all(item: Fields, sources: Sources, scripted: bool) -> Step:
    """The name of a source, a list of names, or true for the only source that can be emptied."""
    raw = item.values["delete_all"]
    if isinstance(raw, Mapping):
        raw = raw.get("source")
    names = [raw] if isinstance(raw, str) else raw
    if raw is True:
        names = [source.name for source in sources.values() if source.kind != "stream"]
    if isinstance(names, list):
        names = [name.get("source") if isinstance(name, Mapping) else name for name in names]
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise item.error("delete_all", f"expected the name of a source, found {shown(raw)}")
    return DeleteAll(
        tuple(_source_name(item, "delete_all", name, sources, scripted) for name in names)
    )


_READERS: dict[str, Callable[[Fields, Sources, bool], Step]] = {
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
