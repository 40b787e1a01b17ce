"""Tables of Delta Lake: opening and creating them, their columns, and the commit marker.

A Delta log stores a version number for each application id. A sink uses two application ids: one
for its last epoch and one for the newest generation of its pipeline. They are written in the same
log entry as the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.connectors.base import EpochId
from tidegate.errors import RunError, SystemUnavailable, TidegateError, did_you_mean
from tidegate.storage import open_store
from tidegate.storage.uris import to_path

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.storage import Store

LOG = "_delta_log"
# An epoch is stored as generation * 10**12 + epoch + 1.
_GENERATION = 10**12
# The writer features that are supported, if `require_no_row_rules` accepts the table.
_SUPPORTED_FEATURES = frozenset(
    {
        *("appendOnly", "invariants", "checkConstraints", "generatedColumns", "changeDataFeed"),
        *("timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "domainMetadata"),
    }
)
_RULES = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
# How object stores reject requests for lack of permission.
_REJECTED = re.compile(r"\b(?:401 Unauthorized|403 Forbidden)\b")
_CODE = re.compile(r"<Code>([^<]*)</Code>")


def import_deltalake() -> Any:
    """Import deltalake, an optional dependency."""
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
def translate_errors(label: str) -> Iterator[None]:
    """Raise errors of deltalake and of the storage as SystemUnavailable or RunError."""
    errors = import_deltalake().exceptions
    try:
        yield
    except errors.TableNotFoundError:
        raise RunError(
            "TG-522",
            f"{label}: the table no longer exists",
            hint="restore the table and start again.",
        ) from None
    except OSError as error:
        raise _translate_store_error(error, label) from None
    except errors.DeltaError as error:
        raise RunError(
            "TG-529",
            f"{label}: {_summary(error)}",
            hint="fix the table and start again; no data was lost.",
        ) from None


def _translate_store_error(error: OSError, label: str) -> TidegateError:
    """Return the error of a disk or an object store, transient unless the login was rejected."""
    rejected = _REJECTED.search(str(error))
    if rejected is None:
        return SystemUnavailable(f"{label}: {_summary(error)}", "Tidegate will keep retrying.")
    code = _CODE.search(str(error))
    return RunError(
        "TG-512",
        f"{label}: the object store rejects the login ({rejected[0] if code is None else code[1]})",
        hint="check the credentials (AWS_… in the environment).",
    )


def _summary(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


@dataclass(frozen=True)
class DeltaColumn:
    """A column of a table. `rules` are checks and expressions that writers must apply."""

    name: str
    type: pa.DataType
    not_null: bool
    rules: tuple[str, ...] = ()


class DeltaLakeTable:
    """A version of a table: its URI and the `DeltaTable` of deltalake."""

    def __init__(self, uri: str, delta_table: Any) -> None:
        self.uri = uri
        self.delta_table = delta_table

    @property
    def store(self) -> Store:
        return open_store(self.uri)

    @property
    def version(self) -> int:
        return int(self.delta_table.version())

    @property
    def partition_by(self) -> tuple[str, ...]:
        return tuple(self.delta_table.metadata().partition_columns)

    @property
    def configuration(self) -> dict[str, str]:
        return dict(self.delta_table.metadata().configuration)

    def columns(self) -> list[DeltaColumn]:
        import pyarrow as pa

        schema = self.delta_table.schema()
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

    def refresh(self) -> None:
        """Load the newest version."""
        self.delta_table.update_incremental()

    def application_version(self, application_id: str) -> int | None:
        """Return the last version that an application has written."""
        version = self.delta_table.transaction_version(application_id)
        return None if version is None else int(version)


def _deltalake_uri(uri: str) -> str:
    """Return the URI for deltalake, which reads the credentials of stores from the environment."""
    return to_path(uri) if uri.startswith("file:") else uri


def open_table(uri: str, version: int | None = None) -> DeltaLakeTable | None:
    """Open a table, or return None if it does not exist."""
    deltalake = import_deltalake()
    try:
        return DeltaLakeTable(uri, deltalake.DeltaTable(_deltalake_uri(uri), version=version))
    except deltalake.exceptions.TableNotFoundError:
        return None


def create_table(uri: str, columns: pa.Schema, partition_by: Sequence[str]) -> None:
    """Create a table, unless it exists."""
    deltalake = import_deltalake()
    names = {name.lower(): name for name in columns.names}
    deltalake.DeltaTable.create(
        _deltalake_uri(uri),
        deltalake.Schema.from_arrow(columns),
        mode="ignore",
        partition_by=[names.get(name.lower(), name) for name in partition_by],
    )


def epoch_number(epoch: EpochId) -> int:
    return epoch.generation * _GENERATION + epoch.epoch + 1


def epoch_from_number(number: int) -> EpochId:
    generation, epoch = divmod(number, _GENERATION)
    return EpochId(generation, epoch - 1)


def commit_properties(numbers: dict[str, int]) -> Any:
    """Return the properties of a log entry that sets the versions of these applications."""
    deltalake = import_deltalake()
    pairs = [
        deltalake.Transaction(application_id, number) for application_id, number in numbers.items()
    ]
    return deltalake.CommitProperties(app_transactions=pairs)


def require_supported(table: DeltaLakeTable, label: str) -> None:
    """Reject tables with features that Tidegate does not implement."""
    configuration = table.configuration
    mapping = configuration.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        raise _unsupported(label, f"its columns are mapped by {mapping}")
    features = table.delta_table.protocol().writer_features or ()
    unsupported = sorted({*features} - _SUPPORTED_FEATURES - {"columnMapping", "deletionVectors"})
    if unsupported:
        raise _unsupported(label, f"it needs {', '.join(unsupported)}")


def require_no_row_rules(table: DeltaLakeTable, label: str, by_key: bool) -> None:
    """Reject tables whose writers must check or compute something for every row."""
    configuration = table.configuration
    rules = [name for name in configuration if name.startswith("delta.constraints.")]
    rules += [f"{rule} of {c.name}" for c in table.columns() for rule in c.rules]
    if rules:
        raise _unsupported(label, f"it has constraints or generated columns: {', '.join(rules)}")
    if by_key and configuration.get("delta.appendOnly", "false") == "true":
        raise _unsupported(label, "it is append-only (delta.appendOnly)")
    if by_key and configuration.get("delta.enableDeletionVectors", "false") == "true":
        raise _unsupported(label, "it uses deletion vectors")


def _unsupported(label: str, why: str) -> TidegateError:
    return RunError(
        "TG-523", f"{label} cannot use this table: {why}", hint="use a table without this feature."
    )


def same_type(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether two types are equal, apart from nullability and the case of field names."""
    import pyarrow as pa

    types = pa.types
    if types.is_list(one) and types.is_list(other):
        return same_type(one.value_type, other.value_type)
    if types.is_map(one) and types.is_map(other):
        keys = same_type(one.key_type, other.key_type)
        return keys and same_type(one.item_type, other.item_type)
    if types.is_struct(one) and types.is_struct(other):
        fields, other_fields = list(one), list(other)
        return len(fields) == len(other_fields) and all(
            a.name.lower() == b.name.lower() and same_type(a.type, b.type)
            for a, b in zip(fields, other_fields, strict=True)
        )
    return bool(one.equals(other))


def matching_column(
    columns: Sequence[DeltaColumn], name: str, data_type: pa.DataType, spark_type: str, label: str
) -> DeltaColumn:
    """Return the column with this name and type. `spark_type` is the type in Spark's notation."""
    exact = [c for c in columns if c.name == name]
    matches = exact or [c for c in columns if c.name.lower() == name.lower()]
    if len(matches) != 1:
        raise RunError(
            "TG-523",
            f"{label}: the table has no column {name}",
            hint=did_you_mean(name, [c.name for c in columns], "columns it has"),
        )
    if not same_type(matches[0].type, data_type):
        raise RunError(
            "TG-523",
            f"{label}: the column {matches[0].name} of the table is {matches[0].type}, but {name} "
            f"is {spark_type}",
            hint=f"give both the same type, for example with a CAST of {name}.",
        )
    return matches[0]
