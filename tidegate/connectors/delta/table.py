"""A table of Delta Lake: opening and creating it, its columns, and who has written what there.

A table keeps the last number that each application has written. A sink has two of them: the last
epoch, and the newest generation of its pipeline. They are in the same log entry as the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.connectors.base import EpochId
from tidegate.errors import RunError, SystemAway, TidegateError, did_you_mean
from tidegate.storage import open_store
from tidegate.storage.uris import to_path

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.storage import Store

LOG = "_delta_log"
# An epoch as one number: its generation, and then its own, which begin at -1.
_GENERATION = 10**12
# What a table may ask of those who write: of these some must not be in use, see `require_plain`.
_KNOWN_FEATURES = frozenset(
    {
        *("appendOnly", "invariants", "checkConstraints", "generatedColumns", "changeDataFeed"),
        *("timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "domainMetadata"),
    }
)
_RULES = ("delta.invariants", "delta.generationExpression", "delta.identity.start")


# What an object store answers to whom it does not know, or does not let do this.
_REJECTED = re.compile(r"\b(?:401 Unauthorized|403 Forbidden)\b")
_CODE = re.compile(r"<Code>([^<]*)</Code>")


def import_deltalake() -> Any:
    """deltalake, which not everybody needs."""
    try:
        import deltalake
    except ImportError:
        raise RunError(
            "TG-521",
            "the connector delta needs deltalake, which is not installed",
            hint="pip install 'tidegate[delta]'",
        ) from None
    return deltalake


@contextmanager
def translate_errors(who: str) -> Iterator[None]:
    """Errors of deltalake as ours."""
    errors = import_deltalake().exceptions
    try:
        yield
    except errors.TableNotFoundError:
        raise RunError(
            "TG-522", f"{who}: the table is gone", hint="put the table back, and start again."
        ) from None
    except OSError as error:
        raise _of_store(error, who) from None
    except errors.DeltaError as error:
        raise RunError(
            "TG-529",
            f"{who}: {_first(error)}",
            hint="mend the table and start again: nothing is lost.",
        ) from None


def _of_store(error: OSError, who: str) -> TidegateError:
    """A disk or an object store that is away, unless it says that it lets nobody in."""
    rejected = _REJECTED.search(str(error))
    if rejected is None:
        return SystemAway(f"{who}: {_first(error)}", "it is tried again until it works.")
    code = _CODE.search(str(error))
    return RunError(
        "TG-512",
        f"{who}: the object store rejects the login ({rejected[0] if code is None else code[1]})",
        hint="check the credentials (AWS_… in the environment).",
    )


def _first(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


@dataclass(frozen=True)
class DeltaColumn:
    """A column of a table."""

    name: str
    type: pa.DataType
    not_null: bool
    rules: tuple[str, ...] = ()


class DeltaLakeTable:
    """A table as it was when it was last looked at."""

    def __init__(self, place: str, loaded: Any) -> None:
        self.place = place
        self.loaded = loaded

    @property
    def store(self) -> Store:
        return open_store(self.place)

    @property
    def version(self) -> int:
        return int(self.loaded.version())

    @property
    def partition_by(self) -> tuple[str, ...]:
        return tuple(self.loaded.metadata().partition_columns)

    @property
    def configuration(self) -> dict[str, str]:
        return dict(self.loaded.metadata().configuration)

    def columns(self) -> list[DeltaColumn]:
        import pyarrow as pa

        schema = self.loaded.schema()
        types = pa.schema(schema.to_arrow())
        return [
            DeltaColumn(
                field.name,
                types.field(field.name).type,
                not field.nullable,
                tuple(rule for rule in _RULES if rule in field.metadata),
            )
            for field in schema.fields
        ]

    def look_again(self) -> None:
        self.loaded.update_incremental()

    def written(self, owner: str) -> int | None:
        """The last number that an application has written."""
        found = self.loaded.transaction_version(owner)
        return None if found is None else int(found)


def _location(place: str) -> str:
    """Where a table is, for deltalake, which has the keys of a store from the environment."""
    return to_path(place) if place.startswith("file:") else place


def open_table(place: str, version: int | None = None) -> DeltaLakeTable | None:
    """A table; None if there is none."""
    deltalake = import_deltalake()
    try:
        return DeltaLakeTable(place, deltalake.DeltaTable(_location(place), version=version))
    except deltalake.exceptions.TableNotFoundError:
        return None


def create_table(place: str, columns: pa.Schema, partition_by: Sequence[str]) -> None:
    """A new table; that somebody else was faster is fine."""
    deltalake = import_deltalake()
    by = {name.lower(): name for name in columns.names}
    deltalake.DeltaTable.create(
        _location(place),
        deltalake.Schema.from_arrow(columns),
        mode="ignore",
        partition_by=[by.get(name.lower(), name) for name in partition_by],
    )


def epoch_number(epoch: EpochId) -> int:
    return epoch.generation * _GENERATION + epoch.epoch + 1


def epoch_from_number(number: int) -> EpochId:
    generation, epoch = divmod(number, _GENERATION)
    return EpochId(generation, epoch - 1)


def commit_properties(numbers: dict[str, int]) -> Any:
    """What a log entry says besides rows: the last number of each application."""
    deltalake = import_deltalake()
    pairs = [deltalake.Transaction(owner, number) for owner, number in numbers.items()]
    return deltalake.CommitProperties(app_transactions=pairs)


def require_supported(table: DeltaLakeTable, who: str) -> None:
    """A table asks for nothing that we would not do when files are added to it, or read."""
    configuration = table.configuration
    mapping = configuration.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        raise _cannot(who, f"its columns are mapped by {mapping}")
    features = table.loaded.protocol().writer_features or ()
    strange = sorted({*features} - _KNOWN_FEATURES - {"columnMapping", "deletionVectors"})
    if strange:
        raise _cannot(who, f"it needs {', '.join(strange)}")


def require_no_row_rules(table: DeltaLakeTable, who: str, by_key: bool) -> None:
    """Nothing of a table has to be checked or computed for every row that is written."""
    configuration = table.configuration
    rules = [name for name in configuration if name.startswith("delta.constraints.")]
    rules += [f"{rule} of {c.name}" for c in table.columns() for rule in c.rules]
    if rules:
        raise _cannot(who, f"it has rules for rows: {', '.join(rules)}")
    if by_key and configuration.get("delta.appendOnly", "false") == "true":
        raise _cannot(who, "rows are only ever added to it (delta.appendOnly)")
    if by_key and configuration.get("delta.enableDeletionVectors", "false") == "true":
        raise _cannot(who, "its rows are deleted by deletion vectors")


def _cannot(who: str, why: str) -> TidegateError:
    return RunError(
        "TG-523", f"{who} cannot use this table: {why}", hint="take a table without it."
    )


def same_type(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types hold the same values, whatever their parts are called and may be NULL."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_list(one) and kinds.is_list(other):
        return same_type(one.value_type, other.value_type)
    if kinds.is_map(one) and kinds.is_map(other):
        keys = same_type(one.key_type, other.key_type)
        return keys and same_type(one.item_type, other.item_type)
    if kinds.is_struct(one) and kinds.is_struct(other):
        mine, theirs = list(one), list(other)
        return len(mine) == len(theirs) and all(
            a.name.lower() == b.name.lower() and same_type(a.type, b.type)
            for a, b in zip(mine, theirs, strict=True)
        )
    return bool(one.equals(other))


def matching_column(
    columns: Sequence[DeltaColumn], name: str, kind: pa.DataType, shown: str, who: str
) -> DeltaColumn:
    """The column of a name, which must be there and have just this type."""
    exact = [c for c in columns if c.name == name]
    found = exact or [c for c in columns if c.name.lower() == name.lower()]
    if len(found) != 1:
        raise RunError(
            "TG-523",
            f"{who}: the table has no column {name}",
            hint=did_you_mean(name, [c.name for c in columns], "columns it has"),
        )
    if not same_type(found[0].type, kind):
        raise RunError(
            "TG-523",
            f"{who}: the column {found[0].name} of the table is {found[0].type}, and {name} is "
            f"{shown}",
            hint=f"give both the same type, by a CAST of {name} for example.",
        )
    return found[0]
