"""Settings of a session: SET key = value, or the argument `config` of `tidegate.open`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.errors import CatalogError, Location, did_you_mean

SETTINGS: tuple[OptionSpec, ...] = (
    OptionSpec(
        "validator",
        OptionType.TEXT,
        "what a statement that is unbounded or would never emit causes: an error (reject), a "
        "warning (warn) or nothing (off)",
        default="reject",
        choices=("reject", "warn", "off"),
    ),
    OptionSpec(
        "optimizer",
        OptionType.TEXT,
        "for debugging: off disables the optimization of plans; the results are the same",
        default="on",
        choices=("on", "off"),
    ),
    OptionSpec(
        "vectorized",
        OptionType.TEXT,
        "for debugging: off evaluates all expressions in Spark instead of Arrow; the results are "
        "the same",
        default="on",
        choices=("on", "off"),
    ),
    OptionSpec(
        "on_change",
        OptionType.TEXT,
        "action if the stored state does not fit a changed query: reject it, continue without "
        "the state of changed operators, or restart the stream",
        default="reject",
        choices=("reject", "continue", "restart"),
    ),
    OptionSpec(
        "trigger_interval",
        OptionType.DURATION,
        "minimum time between the starts of two epochs",
        default=0,
        minimum=0,
    ),
    OptionSpec(
        "target_epoch",
        OptionType.DURATION,
        "target duration of an epoch while there is a backlog",
        default=1_000_000,
        minimum=1,
    ),
    OptionSpec(
        "rows_per_epoch",
        OptionType.INTEGER,
        "maximum number of rows that a source reads per epoch (kafka, generator)",
        default=1_000_000,
        minimum=1,
    ),
    OptionSpec(
        "files_per_epoch",
        OptionType.INTEGER,
        "maximum number of files that a source reads per epoch (files, delta)",
        default=1_000,
        minimum=1,
    ),
    OptionSpec(
        "max_retained",
        OptionType.INTEGER,
        "number of the newest epochs of a pipeline that can be restored; named checkpoints are "
        "kept in addition",
        default=3,
        minimum=1,
    ),
    OptionSpec(
        "key_groups",
        OptionType.INTEGER,
        "number of hash partitions of state; fixed by the first epoch of a pipeline, and ignored "
        "after it; default: 16 on one machine, 128 on a cluster",
        minimum=1,
    ),
    OptionSpec(
        "shared_disk",
        OptionType.BOOLEAN,
        "true if local paths lead to the same files on all machines of the cluster, for example "
        "on NFS",
        default=False,
    ),
    OptionSpec(
        "max_groups",
        OptionType.INTEGER,
        "maximum number of groups of an operator in each key group; with 16 key groups, the "
        "default allows up to 16 million groups",
        default=1_000_000,
        minimum=1,
    ),
    OptionSpec(
        "max_state_bytes",
        OptionType.INTEGER,
        "maximum size of the state of an operator in each key group, in bytes; with 16 key groups, "
        "the default allows up to 16 GiB",
        default=1 << 30,
        minimum=1,
    ),
)
_BY_NAME = {spec.name: spec for spec in SETTINGS}


# Options of a stream or a source that are not settings.
_OPTIONS = {
    "state_ttl": "a stream: CREATE STREAM … WITH (state_ttl = '1 day') AS …",
    "on_error": "a stream: CREATE STREAM … WITH (on_error = 'dead_letter') AS …",
    "pipeline": "a stream: CREATE STREAM … WITH (pipeline = 'main') AS …",
    "dead_letters": "a source or a stream: … WITH (dead_letters = 'bad', …)",
    "idle_timeout": "a source: CREATE SOURCE … WITH (idle_timeout = '1 min', …)",
    "max_future": "a source: CREATE SOURCE … WITH (max_future = '1 hour', …)",
}


def _set_hint(spec: OptionSpec) -> str:
    return spec.valid_values().replace("write ", "write SET ", 1)


def _unknown_hint(key: str) -> str:
    """Return a hint for a setting of another system, or the most similar setting."""
    word = re.sub(r"[^a-z]", "", key.lower())
    if word.endswith("timezone"):
        return (
            "all times are UTC, which cannot be set; for other zones convert them: "
            "from_utc_timestamp(ts, 'Europe/Berlin')."
        )
    if key.lower().startswith("spark."):
        value = "4g" if "memory" in key.lower() else "4"
        return (
            f"configure Spark when it starts: --conf {key}={value} on the command line, or in "
            f"Python tidegate.open(…, conf={{'{key}': '{value}'}})."
        )
    if key.lower() in _OPTIONS:
        return f"{key} is an option of {_OPTIONS[key.lower()]}"
    return did_you_mean(key, _BY_NAME, "settings")


@dataclass
class Settings:
    """The current values of all settings."""

    values: dict[str, Any] = field(
        default_factory=lambda: {spec.name: spec.default for spec in SETTINGS}
    )

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> Settings:
        settings = cls()
        for key, value in (config or {}).items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            settings.set(key, text)
        return settings

    def copy(self) -> Settings:
        return Settings(dict(self.values))

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def set(self, key: str, text: str, location: Location | None = None) -> None:
        """Parse and store a value."""
        spec = _BY_NAME.get(key.lower())
        if spec is None:
            message = f"unknown setting {key}"
            raise CatalogError("TG-212", message, location=location, hint=_unknown_hint(key))
        try:
            self.values[spec.name] = spec.read(text)
        except ValueError as error:
            raise CatalogError(
                "TG-207", f"the setting {key}: {error}", location=location, hint=_set_hint(spec)
            ) from None
