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
        "what happens if the validator rejects a statement",
        default="reject",
        choices=("reject", "warn", "off"),
    ),
    OptionSpec(
        "optimizer",
        OptionType.TEXT,
        "whether plans are optimized; the results are the same",
        default="on",
        choices=("on", "off"),
    ),
    OptionSpec(
        "vectorized",
        OptionType.TEXT,
        "whether tasks evaluate expressions with Arrow where possible; the results are the same",
        default="on",
        choices=("on", "off"),
    ),
    OptionSpec(
        "on_change",
        OptionType.TEXT,
        "what happens to streams whose query has changed, unless they set this option themselves",
        default="reject",
        choices=("reject", "continue", "restart"),
    ),
    OptionSpec(
        "trigger_interval",
        OptionType.DURATION,
        "minimum time between two epochs of a pipeline",
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
        "maximum rows that a generator or a topic contributes to an epoch",
        default=1_000_000,
        minimum=1,
    ),
    OptionSpec(
        "files_per_epoch",
        OptionType.INTEGER,
        "maximum files that a directory contributes to an epoch",
        default=1_000,
        minimum=1,
    ),
    OptionSpec(
        "max_retained",
        OptionType.INTEGER,
        "manifests that are kept for each pipeline, in addition to named checkpoints",
        default=3,
        minimum=1,
    ),
    OptionSpec(
        "key_groups",
        OptionType.INTEGER,
        "partitions of an operator's state, fixed by the first epoch; default: 16 on one machine, "
        "128 on a cluster",
        minimum=1,
    ),
    OptionSpec(
        "shared_disk",
        OptionType.BOOLEAN,
        "true if all machines of the cluster see the same files under the same paths",
        default=False,
    ),
    OptionSpec(
        "max_groups",
        OptionType.INTEGER,
        "maximum groups of an operator in one key group",
        default=1_000_000,
        minimum=1,
    ),
    OptionSpec(
        "max_state_bytes",
        OptionType.INTEGER,
        "maximum bytes of an operator's state in one key group",
        default=1 << 30,
        minimum=1,
    ),
)
_BY_NAME = {spec.name: spec for spec in SETTINGS}


def _unknown_hint(key: str) -> str:
    """Return a hint for a setting of another system, or the most similar setting."""
    word = re.sub(r"[^a-z]", "", key.lower())
    if word.endswith("timezone"):
        return (
            "all times are UTC, which cannot be set; for other zones convert them: "
            "from_utc_timestamp(ts, 'Europe/Berlin')."
        )
    if key.lower().startswith("spark."):
        return (
            "configure Spark when its session is created: tidegate.open(…, conf={…}), or pass your "
            "session: tidegate.open(…, spark=my_session)."
        )
    return did_you_mean(key, _BY_NAME, "settings")


@dataclass
class Settings:
    """The current values of all settings."""

    values: dict[str, Any] = field(
        default_factory=lambda: {spec.name: spec.default for spec in SETTINGS}
    )

    @classmethod
    def of(cls, config: Mapping[str, Any] | None) -> Settings:
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
                "TG-207", f"the setting {key}: {error}", location=location, hint=spec.description
            ) from None
