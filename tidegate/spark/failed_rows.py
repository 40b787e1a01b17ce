"""Dead letters of a stream as rows of a frame, for the sinks that take them."""

from __future__ import annotations

import json

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from tidegate.columns import LETTER_COLUMNS, LIVE, SIDE
from tidegate.spark.late_rows import filled
from tidegate.spark.pack import Batches
from tidegate.spark.sides import Sides

IS_FAILED = "_tg_is_failed"
FAILED_SCHEMA = pa.schema([pa.field(name, pa.string()) for name in LETTER_COLUMNS])
FAILED_OWN = [f"_tg_failed_{name}" for name in LETTER_COLUMNS]


def with_failed(frame: DataFrame) -> DataFrame:
    """The frame with the letters that pass on the side of its rows, turned off, as rows."""
    own = [pa.field(name, pa.string()) for name in FAILED_OWN]
    # A letter has nothing in the columns of rows, whether those may be NULL or not.
    given = [field.with_nullable(True) for field in to_arrow_schema(frame.schema, timezone="UTC")]
    whole = pa.schema([*given, *own, pa.field(IS_FAILED, pa.bool_())])

    def unpack(batches: Batches) -> Batches:
        for batch in batches:
            sides = Sides()
            sides.add(pa.chunked_array([batch.column(batch.schema.get_field_index(SIDE))]))
            known = dict(zip(batch.schema.names, batch.columns, strict=True))
            known[IS_FAILED] = pa.repeat(pa.scalar(False), batch.num_rows)
            yield filled(known, batch.num_rows, whole)
            if sides.failed:
                yield filled(_letters(sides.failed), len(sides.failed), whole)

    return frame.mapInArrow(unpack, from_arrow_schema(whole))


def _letters(failed: list[bytes]) -> dict[str, pa.Array]:
    letters = [json.loads(item) for item in failed]
    columns = {
        own: pa.array([letter.get(name) for letter in letters], pa.string())
        for own, name in zip(FAILED_OWN, LETTER_COLUMNS, strict=True)
    }
    columns[IS_FAILED] = pa.repeat(pa.scalar(True), len(letters))
    columns[LIVE] = pa.repeat(pa.scalar(False), len(letters))
    return columns
