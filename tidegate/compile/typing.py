"""What is new in a script with its types, which Spark finds; what they do not allow is rejected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Declared, Function, SideStream, Sink, Source, Stream
from tidegate.catalog.settings import Settings
from tidegate.compile.compiler import Compiled
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import CatalogError, Location, ScriptError, TidegateError
from tidegate.physical.operator_kind import Unrunnable
from tidegate.physical.rejections import rejected
from tidegate.plan.rewrite.optimizer import plan_to_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def analysed(start: Callable[[], SparkSession], compiled: Compiled) -> Catalog:
    """Let Spark find the types of what is new; its rejections point into the script."""
    kinds = (Source, Stream, Sink, Function)
    fresh = [item for item in compiled.declared if isinstance(item, kinds) and not _is_python(item)]
    if not fresh:
        return compiled.catalog
    from tidegate.spark.analysis import analyse_function, analyse_source

    spark = start()
    errors: list[TidegateError] = []
    for item in fresh:
        declared = compiled.catalog.get(item.name)
        try:
            if declared is None:
                continue
            if isinstance(declared, Function):
                analyse_function(spark, declared)
            elif isinstance(declared, Source):
                compiled.catalog.replace(analyse_source(spark, declared))
            elif isinstance(declared, Stream):
                typed = _typed(spark, declared, compiled.catalog, compiled.settings)
                compiled.catalog.replace(typed)
                _type_late_rows(typed, compiled.catalog)
        except TidegateError as error:
            errors.append(error)
    errors += misfit_sinks(compiled)
    if errors:
        raise ScriptError(errors)
    return compiled.catalog


def _is_python(item: Declared) -> bool:
    """Whether only a call of it has types to look at."""
    return isinstance(item, Function) and item.python is not None


def _typed(spark: SparkSession, stream: Stream, catalog: Catalog, settings: Settings) -> Stream:
    """The stream with the plan that runs; what its types do not allow is rejected here."""
    from tidegate.operators.operator import NO_LIMITS
    from tidegate.physical.planner import plan_physical
    from tidegate.spark.analysis import analyse_plan

    plan = plan_to_run(stream.plan, settings)
    typed = analyse_plan(spark, stream, stream.plan, catalog)
    if plan is not stream.plan:
        # What the optimizer drops had to be right all the same.
        typed = analyse_plan(spark, stream, plan, catalog)
    try:
        emit = stream.query.emit
        keeps_late = emit is not None and emit.late_to is not None
        plan_physical(stream.name, typed, NO_LIMITS, keeps_late)
    except Unrunnable as error:
        assert error.node is not None, "it was planned"
        raise rejected(stream, typed.plan, error.node, error.rejection) from None
    fields = tuple(
        replace(ours, type=theirs.type)
        for ours, theirs in zip(stream.plan.fields, typed.plan.fields, strict=True)
    )
    return replace(stream, plan=replace(stream.plan, fields=fields), typed=typed)


def _type_late_rows(stream: Stream, catalog: Catalog) -> None:
    from tidegate.physical.planner import typed_side

    emit = stream.query.emit
    side = catalog.get(emit.late_to) if emit is not None and emit.late_to is not None else None
    if isinstance(side, SideStream):
        catalog.replace(typed_side(side, stream.typed.plan))


def misfit_sinks(compiled: Compiled) -> list[TidegateError]:
    """Sinks that cannot write the types of their stream."""
    errors: list[TidegateError] = []
    for sink in (item for item in compiled.declared if isinstance(item, Sink)):
        spec = CONNECTORS[sink.connector].sink
        stream = compiled.catalog.get(sink.source)
        if spec is None or spec.check_columns is None or not isinstance(stream, Stream):
            continue
        columns = tuple((item.name, (item.type or "").upper()) for item in stream.plan.fields)
        wrong = spec.check_columns(sink.options, columns)
        if wrong is not None:
            span = sink.statement.name_span
            location = Location(sink.origin.text, span.start, span.end, sink.origin.file)
            errors.append(CatalogError("TG-210", wrong, location=location))
    return errors
