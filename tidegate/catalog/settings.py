"""Settings of a session: SET key = value, or `config` when it is opened."""

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
        "what happens to findings of the validator",
        default="reject",
        choices=("reject", "warn", "off"),
    ),
    OptionSpec(
        "optimiser",
        OptionType.TEXT,
        "whether plans are optimised before they run; the rows are the same",
        default="on",
        choices=("on", "off"),
    ),
    OptionSpec(
        "vectorized",
        OptionType.TEXT,
        "whether tasks compute simple expressions themselves, not Spark; the rows are the same",
        default="on",
        choices=("on", "off"),
    ),
    OptionSpec(
        "on_change",
        OptionType.TEXT,
        "what happens to streams that changed since their last epoch and do not say it themselves",
        default="reject",
        choices=("reject", "continue", "restart"),
    ),
    OptionSpec(
        "trigger_interval",
        OptionType.DURATION,
        "the least time between two epochs of a pipeline",
        default=0,
        minimum=0,
    ),
    OptionSpec(
        "target_epoch",
        OptionType.DURATION,
        "how long an epoch should take while there is more to read than fits into one",
        default=1_000_000,
        minimum=1,
    ),
    OptionSpec(
        "rows_per_epoch",
        OptionType.INTEGER,
        "rows a generator or a topic hands out per epoch",
        default=1_000_000,
        minimum=1,
    ),
    OptionSpec(
        "files_per_epoch",
        OptionType.INTEGER,
        "files a directory source hands out per epoch",
        default=1_000,
        minimum=1,
    ),
    OptionSpec(
        "max_retained",
        OptionType.INTEGER,
        "manifests kept of each pipeline, besides checkpoints with a name",
        default=3,
        minimum=1,
    ),
    OptionSpec(
        "key_groups",
        OptionType.INTEGER,
        "parts the state of an operator is cut into, fixed by the first epoch of a pipeline; by "
        "default 16 on one machine and 128 on a cluster",
        minimum=1,
    ),
    OptionSpec(
        "shared_disk",
        OptionType.BOOLEAN,
        "true if paths of this machine lead to the same files on every machine of the cluster",
        default=False,
    ),
    OptionSpec(
        "max_groups",
        OptionType.INTEGER,
        "groups that an operator may keep in one key group before it stops",
        default=1_000_000,
        minimum=1,
    ),
    OptionSpec(
        "max_state_bytes",
        OptionType.INTEGER,
        "bytes that an operator may keep in one key group before it stops",
        default=1 << 30,
        minimum=1,
    ),
)
_BY_NAME = {spec.name: spec for spec in SETTINGS}


def _unknown_hint(key: str) -> str:
    """What to do for a setting that other systems have, or the nearest one here."""
    word = re.sub(r"[^a-z]", "", key.lower())
    if word.endswith("timezone"):
        return (
            "all times are UTC, which cannot be set; for other zones convert them: "
            "from_utc_timestamp(ts, 'Europe/Berlin')."
        )
    if key.lower().startswith("spark."):
        return (
            "Spark is configured where its session is made: tidegate.open(…, spark=my_session) in "
            "Python."
        )
    return did_you_mean(key, _BY_NAME, "settings")


@dataclass
class Settings:
    """The values in force."""

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
        """Read and keep one setting."""
        spec = _BY_NAME.get(key.lower())
        if spec is None:
            message = f"there is no setting {key}"
            raise CatalogError("TG-212", message, location=location, hint=_unknown_hint(key))
        try:
            self.values[spec.name] = spec.read(text)
        except ValueError as error:
            raise CatalogError(
                "TG-207", f"the setting {key}: {error}", location=location, hint=spec.description
            ) from None
