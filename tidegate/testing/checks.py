"""The expectations of a case, each held against what came out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from tidegate.columns import OP
from tidegate.testing.case import (
    Case,
    ExpectAll,
    ExpectDelta,
    ExpectNew,
    ExpectWatermark,
    LateReference,
    Row,
)
from tidegate.testing.changes import Change, Output, standing
from tidegate.testing.compare import Difference, compare
from tidegate.testing.outcome import Mismatch
from tidegate.testing.steps import WEIGHT

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _require_none(difference: Difference | None, what: str) -> None:
    if difference is not None:
        raise Mismatch(f"{what}: {difference.reason}", difference.render())


def check_rows(
    step: ExpectNew | ExpectAll | ExpectDelta, output: Output, since: int, ordered: bool
) -> None:
    """A step that expects rows; `since` is how many changes earlier steps have seen."""
    if isinstance(step, ExpectNew):
        found = output.new_rows(since)
        _require_none(compare(step.rows, found, output.columns, ordered), "expect_new")
    elif isinstance(step, ExpectAll):
        found = output.all_rows()
        _require_none(compare(step.rows, found, output.columns, ordered), "expect_all")
    else:
        _require_none(_delta(step.rows, output, since), "expect_delta")


def _delta(wanted: Sequence[Row], output: Output, since: int) -> Difference | None:
    """Only the balance counts: a row added and retracted in between is no change."""
    added, removed = standing(output.changes[since:])
    found = [*_signed(added, "+"), *_signed(removed, "-")]
    unfolded: list[Row] = []
    for row in wanted:
        plain = {name: value for name, value in row.items() if name not in (OP, WEIGHT)}
        weight = row[WEIGHT] if WEIGHT in row else (1 if str(row[OP]).startswith("+") else -1)
        unfolded += _signed([plain] * abs(weight), "+" if weight > 0 else "-")
    return compare(unfolded, found, _with_op(output))


def _signed(rows: Sequence[Row], sign: str) -> list[Row]:
    return [{OP: sign, **row} for row in rows]


def _with_op(output: Output) -> dict[str, pa.DataType]:
    return {OP: pa.string(), **output.columns} if output.columns else {}


def check_final(case: Case, output: Output) -> None:
    """What the case expects at its end."""
    if case.expected_changelog is not None:
        difference = _changelog(case.expected_changelog, output, case.ordered)
        _require_none(difference, "expected_changelog")
    if case.expected_rows is not None:
        difference = compare(case.expected_rows, output.all_rows(), output.columns, case.ordered)
        _require_none(difference, "expected_rows")


def _changelog(wanted: Sequence[Row], output: Output, ordered: bool) -> Difference | None:
    """Signs must agree; whether an addition is called +I or +U is not told apart.

    A changelog with +U and never -U is one of upserts: the rows retracted are implied.
    """
    ops = {row[OP] for row in wanted}
    upserts = "+U" in ops and "-U" not in ops
    changes = [c for c in output.changes if not (upserts and c.op == "-U")]
    left = [{**row, OP: str(row[OP])[0]} for row in wanted]
    right = [{OP: _sign(change), **change.row} for change in changes]
    return compare(left, right, _with_op(output), ordered)


def _sign(change: Change) -> str:
    return "+" if change.sign > 0 else "-"


def check_late_rows(case: Case, late: Output) -> None:
    """The late stream holds exactly these rows, as far as its columns tell."""
    assert case.late_rows is not None, "only cases with late rows are checked for them"
    known = {name.lower() for name in late.columns}
    wanted: list[Row] = []
    for item in case.late_rows:
        row = case.rows_of(item.source)[item.row_index] if isinstance(item, LateReference) else item
        wanted.append({k: v for k, v in row.items() if not known or k.lower() in known})
    given = {name.lower() for row in wanted for name in row}
    columns = {name: kind for name, kind in late.columns.items() if name.lower() in given}
    _require_none(compare(wanted, late.all_rows(), columns), "late_rows")


def check_late_count(wanted: int, found: int) -> None:
    """The number of rows that were too late."""
    if wanted != found:
        raise Mismatch(f"expected {wanted} rows to be too late, found {found}")


def check_watermark(step: ExpectWatermark, found: datetime | None) -> None:
    """The watermark in whole milliseconds."""
    at = None if found is None else (found - _EPOCH) // timedelta(milliseconds=1)
    if at != step.watermark_ms:
        raise Mismatch(f"expect_watermark_ms: expected {step.watermark_ms}, found {at}")
