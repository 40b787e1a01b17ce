"""A sink that has rows of which the pipeline knows nothing."""

from __future__ import annotations

from tidegate.connectors.protocols import EpochId
from tidegate.errors import RunError, TidegateError


def sink_is_ahead(message: str, ways_out: str, last: EpochId | None) -> TidegateError:
    """`ways_out` are those besides leaving the rows there, which needs an epoch to go on from."""
    at, leave = "", ""
    if last is not None:
        at = f", and the pipeline is at epoch {last.epoch}"
        leave = (
            f"; or leave them there: RESTORE FROM CHECKPOINT {last.epoch} WITH (sinks = 'keep'); "
            "(rows that are read again will be there twice)"
        )
    return RunError("TG-504", f"{message}{at}", hint=f"{ways_out}{leave}.")
