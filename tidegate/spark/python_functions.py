"""Registration of Python functions in a Spark session."""

from __future__ import annotations

import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark import cloudpickle as untyped_cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as untyped_functions
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.catalog.objects import Function
from tidegate.spark.python_call import for_selected_rows, with_checks
from tidegate.sql.expressions import name_for_selected_rows

cloudpickle: Any = untyped_cloudpickle
# The type stubs of these functions are out of date.
F: Any = untyped_functions


def register(spark: SparkSession, function: Function) -> None:
    """Make a function known to this session, and to those that are cloned from it later."""
    assert function.python is not None and function.returns is not None, "it is Python"
    code = function.python
    schema = StructType.fromDDL(f"c {function.returns}")
    assert isinstance(schema, StructType), "a column is a struct"
    kind = to_arrow_schema(schema, timezone="UTC").field(0).type
    called = with_checks(function.name, code.call, code.scalar, kind, function.returns)
    for name, implementation in (
        (function.registered_name, called),
        (name_for_selected_rows(function.registered_name), for_selected_rows(called, kind)),
    ):
        with warnings.catch_warnings():
            # Spark warns about missing type hints, which variadic functions cannot have.
            warnings.simplefilter("ignore", UserWarning)
            udf = F.arrow_udf(implementation, schema.fields[0].dataType, F.ArrowUDFType.SCALAR)
        udf = udf if code.deterministic else udf.asNondeterministic()
        with _pickled_by_value(code.call):
            spark.udf.register(name, udf)


def unregister(spark: SparkSession, names: Iterable[str]) -> None:
    """Remove a function from the session, unless the session has ended."""
    with suppress(PySparkException, Py4JError, AttributeError, ConnectionError):
        for name in names:
            spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {name}")
            spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {name_for_selected_rows(name)}")


@contextmanager
def _pickled_by_value(call: Any) -> Iterator[None]:
    """Pickle the module of a function by value, unless it is installed in workers too."""
    module = sys.modules.get(getattr(call, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    is_local = file is not None and not any(file.startswith(path) for path in installed)
    if (
        module is None
        or not is_local
        or module.__name__ in cloudpickle.list_registry_pickle_by_value()
    ):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)
