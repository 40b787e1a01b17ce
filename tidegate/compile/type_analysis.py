"""Type analysis: Spark determines the types of new objects, and invalid types are rejected."""

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
from tidegate.physical.rejections import rejection_error
from tidegate.plan.rewrite.optimizer import optimized_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def assign_types(start: Callable[[], SparkSession], compiled: Compiled) -> Catalog:
    """Return the catalog with the types of declared objects; raise the errors of Spark."""
    kinds = (Source, Stream, Sink, Function)
    declared_objects = [
        item for item in compiled.declared if isinstance(item, kinds) and not _is_python(item)
    ]
    if not declared_objects:
        return compiled.catalog
    from tidegate.spark.analysis import analyse_function, analyse_source

    spark = start()
    errors: list[TidegateError] = []
    for item in declared_objects:
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
    errors += sink_type_errors(compiled)
    if errors:
        raise ScriptError(errors)
    return compiled.catalog


def _is_python(item: Declared) -> bool:
    """Return whether an object is a Python function, which is analyzed where it is called."""
    return isinstance(item, Function) and item.python is not None


def _typed(spark: SparkSession, stream: Stream, catalog: Catalog, settings: Settings) -> Stream:
    """Return a stream with its typed plan; raise an error if a type is not supported."""
    from tidegate.operators.operator import NO_LIMITS
    from tidegate.physical.planner import plan_physical
    from tidegate.spark.analysis import analyse_plan

    plan = optimized_plan(stream.plan, settings)
    typed = analyse_plan(spark, stream, stream.plan, catalog)
    if plan is not stream.plan:
        # The optimizer may drop invalid expressions, so both plans are analyzed.
        typed = analyse_plan(spark, stream, plan, catalog)
    try:
        emit = stream.query.emit
        keeps_late = emit is not None and emit.late_to is not None
        plan_physical(stream.name, typed, NO_LIMITS, keeps_late)
    except Unrunnable as error:
        assert error.node is not None, "planning reports a node"
        raise rejection_error(stream, typed.plan, error.node, error.rejection) from None
    fields = tuple(
        replace(field, type=typed_field.type)
        for field, typed_field in zip(stream.plan.fields, typed.plan.fields, strict=True)
    )
    return replace(stream, plan=replace(stream.plan, fields=fields), typed_plan=typed)


def _type_late_rows(stream: Stream, catalog: Catalog) -> None:
    from tidegate.physical.planner import typed_side_stream

    emit = stream.query.emit
    side = catalog.get(emit.late_to) if emit is not None and emit.late_to is not None else None
    if isinstance(side, SideStream):
        catalog.replace(typed_side_stream(side, stream.typed_plan.plan))


def sink_type_errors(compiled: Compiled) -> list[TidegateError]:
    """Return an error for each sink that cannot write the column types of its stream."""
    errors: list[TidegateError] = []
    for sink in (item for item in compiled.declared if isinstance(item, Sink)):
        spec = CONNECTORS[sink.connector].sink
        stream = compiled.catalog.get(sink.stream)
        if spec is None or spec.check_columns is None or not isinstance(stream, Stream):
            continue
        columns = tuple((item.name, (item.type or "").upper()) for item in stream.plan.fields)
        problem = spec.check_columns(sink.options, columns)
        if problem is not None:
            span = sink.statement.name_span
            location = Location(sink.script.text, span.start, span.end, sink.script.file)
            errors.append(CatalogError("TG-210", problem, location=location))
    return errors
