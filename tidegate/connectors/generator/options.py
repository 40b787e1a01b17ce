"""The options of the generator source."""

from __future__ import annotations

from tidegate.catalog.connector import Complaint, ConnectorSpec, SourceSpec, Values
from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.connectors.generator.generator import columns

_OPTIONS = (
    OptionSpec(
        "kind",
        OptionType.TEXT,
        "what to generate: NEXMark events or a numbered series",
        default="nexmark",
        choices=("nexmark", "series"),
    ),
    OptionSpec(
        "table",
        OptionType.TEXT,
        "the NEXMark table",
        default="bid",
        choices=("person", "auction", "bid"),
    ),
    OptionSpec(
        "rows",
        OptionType.INTEGER,
        "events of the whole sequence (all tables together); endless if left out",
        minimum=0,
    ),
    OptionSpec(
        "events_per_second",
        OptionType.INTEGER,
        "events per second of event time",
        default=10_000,
        minimum=1,
    ),
    OptionSpec("seed", OptionType.INTEGER, "another seed gives other events", default=42),
    OptionSpec(
        "start",
        OptionType.TEXT,
        "the event time of the first event",
        default="2015-07-15 00:00:00",
    ),
    OptionSpec(
        "out_of_order_ms",
        OptionType.INTEGER,
        "event times are up to this many milliseconds behind their place",
        default=0,
        minimum=0,
    ),
    OptionSpec("keys", OptionType.INTEGER, "keys of a series", default=10, minimum=1),
    # Its events are made, not measured: they may run ahead of the clock.
    OptionSpec(
        "max_future",
        OptionType.DURATION,
        "as for every source, but off unless it is given",
        may_be_off=True,
    ),
)


def _bounded(options: Values) -> bool:
    return options["rows"] is not None


def _check(options: Values) -> Complaint | None:
    """What is wrong with the options together, if anything."""
    try:
        columns(options)
    except ValueError as error:
        return str(error), None
    return None


SPEC = ConnectorSpec(
    "generator",
    "makes NEXMark events or a series, the same ones every time",
    source=SourceSpec(
        _OPTIONS,
        bounded=_bounded,
        unbounded_by_options=lambda options: not _bounded(options),
        columns=columns,
        check=_check,
        identity=("kind", "table", "events_per_second", "seed", "start", "out_of_order_ms", "keys"),
    ),
)
