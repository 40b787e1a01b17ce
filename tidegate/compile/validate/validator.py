"""The list of all checks, and the function that runs them on a plan."""

from __future__ import annotations

from enum import Enum

from tidegate.compile.validate.bounds import (
    distinct_without_bound,
    join_without_bound,
    limit_unbounded,
    set_operation_without_bound,
    sort_unbounded,
    subquery_predicate,
    volatile_in_state,
)
from tidegate.compile.validate.emit import (
    aggregate_without_emit,
    emit_close_without_watermark,
    emit_close_without_window,
    emit_nothing_to_update,
)
from tidegate.compile.validate.finding import Check, Finding, Subject
from tidegate.compile.validate.joins import join_sides, temporal_join_versions
from tidegate.compile.validate.side_streams import late_rows_of_several
from tidegate.compile.validate.windows import (
    lateness_without_window,
    match_unsupported,
    over_unsupported,
    window_not_event_time,
)
from tidegate.plan import nodes as n

# All checks, in the order in which they run.
CHECKS: tuple[Check, ...] = (
    sort_unbounded,
    limit_unbounded,
    aggregate_without_emit,
    emit_close_without_window,
    emit_close_without_watermark,
    window_not_event_time,
    join_without_bound,
    join_sides,
    temporal_join_versions,
    distinct_without_bound,
    set_operation_without_bound,
    subquery_predicate,
    over_unsupported,
    match_unsupported,
    lateness_without_window,
    late_rows_of_several,
    volatile_in_state,
    emit_nothing_to_update,
)


class ValidatorMode(Enum):
    """What happens to findings."""

    REJECT = "reject"
    WARN = "warn"
    OFF = "off"


def validate(plan: n.Emit) -> list[Finding]:
    """Return the findings of a plan, ordered by their location."""
    subject = Subject(plan)
    findings = {
        (finding.code, finding.message, _position(finding)): finding
        for check in CHECKS
        for finding in check(subject)
    }
    return sorted(findings.values(), key=_position)


def _position(finding: Finding) -> int:
    span = finding.span or finding.node.span
    return span.start if span is not None else 0
