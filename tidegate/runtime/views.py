"""Materialised views: the sink that keeps what a stream gives out, and when it is another view."""

from __future__ import annotations

from tidegate.catalog.objects import Sink, Stream
from tidegate.catalog.options import Options
from tidegate.checkpoint.manifest import StreamState
from tidegate.connectors import view
from tidegate.connectors.view import Shape
from tidegate.errors import DataDirectoryError
from tidegate.physical.fingerprint import canonical


def shape_of(stream: Stream) -> Shape:
    """What the rows of a stream mean, once Spark has found its types."""
    plan = stream.plan
    key = tuple(plan.field(column).name for column in plan.key or ())
    columns = tuple((item.name, str(item.type)) for item in plan.fields)
    return Shape(plan.changelog, key, columns)


def view_sink(stream: Stream) -> Sink:
    """The sink of a materialised view, which nobody declares."""
    shape = shape_of(stream)
    meaning = shape.meaning(canonical(stream.typed.plan)) if stream.typed is not None else ""
    options = Options({"shape": shape, "meaning": meaning}, {}, set())
    name = view.sink_name(stream.name)
    return Sink(
        name, options, stream.statement, stream.origin, view.CONNECTOR, stream.name, implied=True
    )


def changed_view(name: str, now: str | None, stored: StreamState) -> DataDirectoryError | None:
    """A view whose rows would be those of two queries, or not all; None if it goes on."""
    if now is None or now == stored.view or not stored.rows_out:
        return None
    if stored.view is None:
        what = (
            f"{name} is a materialized view now, and {stored.rows_out:,} rows that it gave out "
            "before are not kept"
        )
    else:
        what = (
            f"the query of the materialized view {name} changed since its last epoch: the rows "
            "that it has are those of the query before"
        )
    return DataDirectoryError(
        "TG-603",
        what,
        hint="give the view another name, or keep the query of before; or run once with "
        "--on-change restart, or CREATE MATERIALIZED VIEW … WITH (on_change = 'restart'): it "
        "starts from the beginning.",
    )
