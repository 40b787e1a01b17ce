"""The open lookup tables of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.catalog.objects import LookupTable
from tidegate.connectors.base import LookupConnector
from tidegate.physical.planner import LookupPlan
from tidegate.storage import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Lookups:
    """The open lookup tables of a pipeline."""

    store: Store
    open_lookup: Callable[[LookupTable, str], LookupConnector]
    connectors: dict[str, LookupConnector] = field(default_factory=dict)
    # The declarations of the open tables: a table may be replaced by another of its name.
    _declarations: dict[str, LookupTable] = field(default_factory=dict)

    def open(self, plans: Sequence[LookupPlan]) -> None:
        """Open the tables that these plans read; keep those that are open, drop all others."""
        connectors: dict[str, LookupConnector] = {}
        for table in (plan.table for plan in plans):
            name = table.name.lower()
            if name not in self.connectors or self._declarations.get(name) != table:
                scratch = self.store.child("lookups").child(name).uri
                self.connectors[name] = self.open_lookup(table, scratch)
                self._declarations[name] = table
            connectors[name] = self.connectors[name]
        self.connectors = connectors

    def snapshot_versions(self, spark: SparkSession) -> dict[str, Any]:
        """Return the current version of each table, as the tasks of an epoch need it."""
        return {name: lookup.as_of(spark) for name, lookup in self.connectors.items()}
