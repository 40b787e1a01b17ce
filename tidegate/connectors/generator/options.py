"""The option spec of the generator source."""

from __future__ import annotations

from tidegate.catalog.connector import ConnectorSpec, OptionProblem, OptionValues, SourceSpec
from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.connectors.generator.generator import columns

_OPTIONS = (
    OptionSpec(
        "kind",
        OptionType.TEXT,
        "NEXMark events or a numbered series",
        default="nexmark",
        choices=("nexmark", "series"),
    ),
    OptionSpec(
        "table",
        OptionType.TEXT,
        "NEXMark table",
        default="bid",
        choices=("person", "auction", "bid"),
    ),
    OptionSpec(
        "rows",
        OptionType.INTEGER,
        "number of events to generate; of every 50 NEXMark events, 46 are bids, 3 are auctions and "
        "1 is a person; default: unbounded",
        minimum=0,
    ),
    OptionSpec(
        "events_per_second",
        OptionType.INTEGER,
        "events per second of event time",
        default=10_000,
        minimum=1,
    ),
    OptionSpec("seed", OptionType.INTEGER, "seed of the random numbers", default=42),
    OptionSpec(
        "start",
        OptionType.TEXT,
        "event time of the first event",
        default="2015-07-15 00:00:00",
    ),
    OptionSpec(
        "out_of_order_ms",
        OptionType.INTEGER,
        "maximum disorder of event times, in milliseconds",
        default=0,
        minimum=0,
    ),
    OptionSpec("keys", OptionType.INTEGER, "number of keys of a series", default=10, minimum=1),
    # Event times are generated and may be far in the future.
    OptionSpec(
        "max_future",
        OptionType.DURATION,
        "see the options of every source; default: off",
        may_be_off=True,
    ),
)


def _bounded(options: OptionValues) -> bool:
    return options["rows"] is not None


def _check(options: OptionValues) -> OptionProblem | None:
    """Return what is wrong with the combination of options, or None."""
    try:
        columns(options)
    except ValueError as error:
        return str(error), None
    return None


SPEC = ConnectorSpec(
    "generator",
    "deterministic test data",
    source=SourceSpec(
        _OPTIONS,
        is_bounded=_bounded,
        never_ends=lambda options: not _bounded(options),
        columns=columns,
        check=_check,
        identity_options=(
            "kind",
            "table",
            "events_per_second",
            "seed",
            "start",
            "out_of_order_ms",
            "keys",
        ),
    ),
)
