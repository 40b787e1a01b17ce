"""What every operator is: pure functions over tables, with state that comes in from outside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from tidegate.operators.clock import END_US
from tidegate.state import codec
from tidegate.state.backend import StateBackend

Tables = tuple[pa.Table, ...]
OP = "_op"
INSERT, BEFORE, AFTER, DELETE = "+I", "-U", "+U", "-D"


@dataclass(frozen=True)
class Moment:
    """The watermark before and after an epoch, and the epoch's processing time."""

    before_us: int | None
    after_us: int | None
    now_us: int

    @property
    def ended(self) -> bool:
        return self.after_us == END_US

    @property
    def just_ended(self) -> bool:
        return self.ended and self.before_us != END_US


@dataclass
class Output:
    """What an operator hands out in an epoch."""

    main: list[pa.Table] = field(default_factory=list)
    late: list[pa.Table] = field(default_factory=list)


class Operator(Protocol):
    """`packed` are the schemas of what `lift` makes, a tuple a port."""

    @property
    def name(self) -> str: ...

    @property
    def packed(self) -> tuple[tuple[pa.Schema, ...], ...]: ...

    @property
    def output(self) -> pa.Schema: ...

    @property
    def late(self) -> pa.Schema | None: ...

    def fingerprint(self) -> tuple[str, ...]:
        """What the meaning of its state depends on."""

    def lift(self, port: int, rows: pa.Table) -> Tables:
        """Where the rows are: make them as small as they can be."""

    def shrink(self, port: int, parts: Sequence[Tables]) -> Tables:
        """Where the rows are: several lifted parts as one."""

    def step(self, state: OperatorState, inputs: list[list[Tables]], moment: Moment) -> Output:
        """One epoch of one key group: parts by port, in the order they came."""


class OperatorState:
    """The state of one operator in one key group: a small `meta` and stored tables."""

    def __init__(
        self, backend: StateBackend, fingerprint: bytes, what: str, first_key_group: bool = True
    ) -> None:
        self.backend = backend
        self.fingerprint = fingerprint
        self.what = what
        # Where the one group of an aggregate without keys lives.
        self.first_key_group = first_key_group
        self.meta: dict[str, Any] = {}
        # Numbers to show: groups, open windows, rows.
        self.gauges: dict[str, int] = {}

    @property
    def late_rows(self) -> int:
        return int(self.meta.get("late_rows", 0))

    def count_late(self, rows: int) -> None:
        if rows:
            self.meta["late_rows"] = self.late_rows + rows

    def put(self, name: str, key: bytes, tables: Tables) -> int:
        """Store tables; returns how many bytes they take."""
        stored = codec.encode(codec.tables_to_bytes(tables), self.fingerprint)
        self.backend.put(name, key, stored)
        return len(stored)

    def get(self, name: str, key: bytes, schemas: Sequence[pa.Schema]) -> Tables | None:
        stored = self.backend.get(name, key)
        if stored is None:
            return None
        payload = codec.decode(stored, self.fingerprint, self.what)
        return None if payload is None else tuple(codec.tables_from_bytes(payload, schemas))

    def delete(self, name: str, key: bytes) -> None:
        self.backend.delete(name, key)

    def meta_bytes(self) -> bytes:
        return json.dumps(self.meta, separators=(",", ":")).encode()


def with_op(table: pa.Table, op: str) -> pa.Table:
    """The table with the column that says what its rows do."""
    return table.append_column(OP, pa.repeat(pa.scalar(op, pa.string()), table.num_rows))
