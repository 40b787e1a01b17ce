"""The checks, one per file; the order here is the order in which they run."""

from tidegate.validate.checks.aggregate_without_emit import aggregate_without_emit
from tidegate.validate.checks.distinct_without_bound import distinct_without_bound
from tidegate.validate.checks.emit_close_without_watermark import emit_close_without_watermark
from tidegate.validate.checks.emit_close_without_window import emit_close_without_window
from tidegate.validate.checks.emit_nothing_to_update import emit_nothing_to_update
from tidegate.validate.checks.join_sides import join_sides
from tidegate.validate.checks.join_without_bound import join_without_bound
from tidegate.validate.checks.late_rows_of_several import late_rows_of_several
from tidegate.validate.checks.lateness_without_window import lateness_without_window
from tidegate.validate.checks.limit_unbounded import limit_unbounded
from tidegate.validate.checks.match_unsupported import match_unsupported
from tidegate.validate.checks.over_unsupported import over_unsupported
from tidegate.validate.checks.set_operation_without_bound import set_operation_without_bound
from tidegate.validate.checks.sort_unbounded import sort_unbounded
from tidegate.validate.checks.subquery_predicate import subquery_predicate
from tidegate.validate.checks.temporal_join_versions import temporal_join_versions
from tidegate.validate.checks.volatile_in_state import volatile_in_state
from tidegate.validate.checks.window_not_event_time import window_not_event_time
from tidegate.validate.finding import Check

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
