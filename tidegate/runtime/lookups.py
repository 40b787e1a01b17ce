"""The lookup tables of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.catalog.objects import LookupTable
from tidegate.connectors.base import OpenLookup
from tidegate.physical.planner import EnrichPlan
from tidegate.storage import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Lookups:
    """Opens what streams ask, and closes what nobody asks any more."""

    store: Store
    open_lookup: Callable[[LookupTable, str], OpenLookup]
    opened: dict[str, OpenLookup] = field(default_factory=dict)
    # The declarations that these were opened by: one of the same name may be another table.
    _declared: dict[str, LookupTable] = field(default_factory=dict)

    def open(self, plans: Sequence[EnrichPlan]) -> None:
        found: dict[str, OpenLookup] = {}
        for table in (plan.table for plan in plans):
            name = table.name.lower()
            if name not in self.opened or self._declared.get(name) != table:
                scratch = self.store.child("lookups").child(name).uri
                self.opened[name] = self.open_lookup(table, scratch)
                self._declared[name] = table
            found[name] = self.opened[name]
        self.opened = found

    def as_of(self, spark: SparkSession) -> dict[str, Any]:
        """What the tasks of an epoch must know to see all tables as they are now."""
        return {name: lookup.as_of(spark) for name, lookup in self.opened.items()}
