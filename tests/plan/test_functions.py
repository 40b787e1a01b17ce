"""User-defined functions: inlined calls, versions, and Python functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.compiling import SOURCES, compile_text, compile_with_sources, plan_of
from tidegate.catalog.objects import Function, Sink, Source, Stream
from tidegate.catalog.python_functions import load, version_of
from tidegate.compile.compiler import Compiled, Compiler
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import TidegateError
from tidegate.physical.canonical_form import canonical_form
from tidegate.physical.explain import explain
from tidegate.physical.stages import node_calls_udf
from tidegate.plan import nodes as n
from tidegate.runtime.directory import DataDirectory
from tidegate.session.functions import python_declaration
from tidegate.session.results import listing
from tidegate.session.saved_catalog import load_declarations, save_declarations
from tidegate.spark.python_functions import for_selected_rows, with_checks
from tidegate.sql import statements as st
from tidegate.sql.dialect import to_sql
from tidegate.sql.expressions import calls_for_selected_rows

RATE = 2
FEE = "CREATE FUNCTION fee(x DOUBLE, rate DOUBLE) RETURNS DOUBLE RETURN x * rate;"


def clean(compiled: Compiled) -> Compiled:
    assert not compiled.errors, "\n".join(error.render() for error in compiled.errors)
    return compiled


def projected(functions: str, expression: str) -> str:
    """Return an expression over bids after binding."""
    compiled = clean(
        compile_with_sources(f"{functions} CREATE STREAM s AS SELECT {expression} AS c FROM bids;")
    )
    plan = plan_of(compiled, "s")
    assert isinstance(plan.input, n.Project)
    return to_sql(plan.input.expressions[0]).replace("`", "")


@pytest.mark.parametrize(
    ("body", "call", "expected"),
    [
        ("(x INT) AS x + 1", "f(price)", "(CAST(price AS INT) + 1)"),
        ("(x INT) RETURNS INT RETURN x", "f(price)", "CAST(price AS INT)"),
        ("(x INT) RETURN x", "f(f(price))", "(CAST((CAST(price AS INT)) AS INT))"),
        ("(price INT, auction INT) AS price - auction", "f(auction, price)", None),
        ("(x INT) AS CASE WHEN x > 0 THEN x END", "F(price) * 2", None),
        ("(s STRUCT<a: INT>) AS s.a", "f(info)", "(CAST(info AS STRUCT<a: INT>).a)"),
        ("(x INT) AS f.x", "f(price)", "(CAST(price AS INT))"),
    ],
)
def test_inlines_a_call(body: str, call: str, expected: str | None) -> None:
    text = projected(f"CREATE FUNCTION f{body};", call)
    if call == "f(auction, price)":
        expected = "(CAST(auction AS INT) - CAST(price AS INT))"
    if call == "F(price) * 2":
        cast = "CAST(price AS INT)"
        expected = f"(CASE WHEN {cast} > 0 THEN {cast} END) * 2"
    assert text == expected


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("plus(array(1), price)", "x -> x + CAST(price AS BIGINT)"),
        ("transform(array(1), x -> plus(array(1), x)[0])", "x_ -> x_ + CAST(x AS BIGINT)"),
        ("aggregate(array(1), 0, (x, x_) -> plus(array(x), x_)[0])", "x__ -> x__ + CAST(x_ AS"),
    ],
)
def test_renames_lambda_parameters_that_would_capture_arguments(call: str, expected: str) -> None:
    plus = "CREATE FUNCTION plus(xs ARRAY<BIGINT>, y BIGINT) AS transform(xs, x -> x + y);"
    assert expected in projected(plus, call)


def test_renames_lambda_parameter_with_the_name_of_a_column() -> None:
    compiled = clean(
        compile_text(
            "CREATE SOURCE t (x BIGINT) WITH (connector = 'memory');"
            "CREATE FUNCTION plus(xs ARRAY<BIGINT>, y BIGINT) AS transform(xs, x -> x + y);"
            "CREATE STREAM s AS SELECT plus(array(1), x) AS c FROM t;"
        )
    )
    text = to_sql(plan_of(compiled, "s").input.expressions[0])  # type: ignore[attr-defined]
    assert "`x_` -> `x_` + CAST(`x` AS BIGINT)" in text


def canonical_form_of(
    functions: str, query: str = "SELECT sum(fee(price, 2)) AS s FROM bids EMIT CHANGES"
) -> str:
    return canonical_form(
        plan_of(clean(compile_with_sources(f"{functions} CREATE STREAM s AS {query};")), "s")
    )


def test_canonical_form_depends_on_the_body_and_not_on_names() -> None:
    same = canonical_form_of(FEE)
    assert canonical_form_of(FEE.replace("rate", "share").replace("RETURN x", "AS  x")) == same
    assert canonical_form_of(FEE.replace("x * rate", "x + rate")) != same
    assert canonical_form_of(FEE.replace("x DOUBLE", "x FLOAT")) != same
    renamed = FEE.replace("fee", "cost")
    query = "SELECT sum(cost(price, 2)) AS s FROM bids EMIT CHANGES"
    assert canonical_form_of(renamed, query) == same, "the name does not matter"


def test_rejects_random_function_as_group_key() -> None:
    compiled = compile_with_sources(
        "CREATE FUNCTION noise(x BIGINT) RETURNS DOUBLE RETURN x * rand();"
        "CREATE STREAM s AS SELECT noise(price) AS k, count(*) AS n FROM bids GROUP BY 1 EMIT CHANGES;"
        "CREATE STREAM fine AS SELECT noise(price) AS k FROM bids;"
    )
    assert [error.code for error in compiled.errors] == ["TG-414"]


def test_inlines_calls_in_sources_and_inserts() -> None:
    compiled = clean(
        compile_text(
            "INSERT INTO t VALUES (twice(twice(1)));"
            "CREATE SOURCE t (a BIGINT, b AS twice(a)) WITH (connector = 'memory');"
            "CREATE FUNCTION twice(x BIGINT) RETURNS BIGINT RETURN x * 2;"
        )
    )
    source = compiled.catalog.get("t")
    assert isinstance(source, Source)
    assert to_sql(source.columns[1].computed) == "CAST(CAST(`a` AS BIGINT) * 2 AS BIGINT)"  # type: ignore[arg-type]
    (insert,) = [item for item in compiled.statements if isinstance(item, st.Insert)]
    inner = "CAST(CAST(1 AS BIGINT) * 2 AS BIGINT)"
    assert inner in to_sql(insert.tree)
    assert "twice" not in to_sql(insert.tree).lower()
    assert [item.name for item in compiled.catalog.dependents("twice")] == ["t"]


# Replacing


def test_replacing_a_stream_or_function_replans_its_readers() -> None:
    before = clean(
        compile_with_sources(
            f"{FEE} CREATE STREAM a AS SELECT fee(price, 2) AS p, auction FROM bids;"
            "CREATE STREAM b AS SELECT p FROM a; CREATE SINK c FROM b WITH (connector = 'console');"
        )
    )
    compiler = Compiler(CONNECTORS, before.catalog)
    for change in (
        "CREATE OR REPLACE STREAM a AS SELECT price AS p FROM bids WHERE price > 1;",
        "CREATE OR REPLACE FUNCTION fee(x DOUBLE, rate DOUBLE) RETURNS DOUBLE RETURN x + rate;",
        "ALTER STREAM a SET (state_ttl = '1 day');",
    ):
        after = clean(compiler.compile(change))
        assert after.replaced
        for name in "ab":
            assert after.catalog.get(name) is not before.catalog.get(name), (change, name)
            assert (
                canonical_form(plan_of(after, name)) != ""
                and after.catalog.get(name) in after.declared
            )
        assert [item.name for item in after.catalog.of_type(Sink)] == ["c"]
        assert not clean(
            compile_with_sources("CREATE OR REPLACE STREAM a AS SELECT price FROM bids;")
        ).replaced
    assert "price > 1" in explain(
        plan_of(
            clean(
                compiler.compile(
                    "CREATE OR REPLACE STREAM a AS SELECT price AS p FROM bids WHERE price > 1;"
                )
            ),
            "b",
        )
    )
    assert plan_of(before, "b").fields[0].name == "p", "the previous catalog is unchanged"


def test_rejects_a_replacement_that_a_sink_cannot_consume() -> None:
    before = clean(
        compile_with_sources(
            "CREATE STREAM a AS SELECT auction FROM bids;"
            "CREATE SINK c FROM a WITH (connector = 'files', path = 'out');"
        )
    )
    change = "CREATE OR REPLACE STREAM a AS SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT CHANGES;"
    after = Compiler(CONNECTORS, before.catalog).compile(change)
    assert [error.code for error in after.errors] == ["TG-413"]
    assert after.errors[0].location is not None
    assert "CREATE SINK c" in after.errors[0].location.text, (
        "it points to the sink, wherever that was"
    )


def test_alter_stream_adds_and_changes_options() -> None:
    compiled = clean(
        compile_with_sources(
            "CREATE STREAM a WITH (state_ttl = '1 day') AS SELECT DISTINCT channel FROM bids -- it's\n;"
            "ALTER STREAM a SET (state_ttl = '2 days', trigger_interval = '1 s');"
            "CREATE MATERIALIZED VIEW v AS SELECT auction FROM bids; ALTER STREAM v SET (on_change = 'restart');"
        )
    )
    stream, view = compiled.catalog.get("a"), compiled.catalog.get("v")
    assert isinstance(stream, Stream) and isinstance(view, Stream)
    assert stream.options["state_ttl"] == 2 * 86_400_000_000
    assert stream.options["trigger_interval"] == 1_000_000
    assert stream.create_sql() == (
        "CREATE STREAM `a` WITH (state_ttl = '2 days', trigger_interval = '1 s') AS\n"
        "SELECT DISTINCT channel FROM bids;"
    )
    assert view.materialized and view.options["on_change"] == "restart"


def test_shows_and_drops_functions() -> None:
    compiled = clean(compile_text(FEE + "CREATE FUNCTION IF NOT EXISTS fee(x INT) RETURN x;"))
    assert listing(compiled.catalog, "FUNCTIONS").rows == [
        ("fee", "fee(x DOUBLE, rate DOUBLE) RETURNS DOUBLE")
    ]
    dropped = clean(Compiler(CONNECTORS, compiled.catalog).compile("DROP FUNCTION fee;"))
    assert dropped.catalog.names() == []


# Python


def doubled(x: Any) -> Any:
    return pc.multiply(x, RATE)


def through(x: Any) -> Any:
    return doubled(x)


class Owner:
    def registered(self, x: Any) -> Any:
        return x


def with_default(rate: int) -> Any:
    def times(x: Any, by: int = rate) -> Any:
        return x * by

    return times


def declared(name: str = "py", deterministic: bool = True, **options: Any) -> Function:
    keywords = {"version": None, "deterministic": deterministic, "scalar": False, **options}
    return python_declaration(name, doubled, "BIGINT", ["BIGINT"], **keywords)


def with_python(function: Function, sql: str) -> Compiled:
    compiled = Compiler(CONNECTORS, clean(compile_text(SOURCES)).catalog).declare(function)
    return Compiler(CONNECTORS, clean(compiled).catalog).compile(sql)


def test_python_function_remains_a_call() -> None:
    compiled = clean(with_python(declared(), "CREATE STREAM s AS SELECT py(price) AS p FROM bids;"))
    project = plan_of(compiled, "s").input
    assert isinstance(project, n.Project)
    assert node_calls_udf(project), "called for selected rows only"
    assert "Project py(CAST(price AS BIGINT)) AS p" in explain(plan_of(compiled, "s"))
    assert declared().registered_name in to_sql(project.expressions[0])


def test_canonical_form_contains_the_version_of_a_python_function() -> None:
    sql = "CREATE STREAM s AS SELECT sum(py(price)) AS p FROM bids EMIT CHANGES;"

    def text(function: Function) -> str:
        return canonical_form(plan_of(clean(with_python(function, sql)), "s"))

    assert text(declared()) == text(declared())
    assert text(declared(version="2")) != text(declared())
    assert text(declared(version="2")) == text(declared(version="2"))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT py(price) AS p, count(*) AS n FROM bids GROUP BY 1 EMIT CHANGES",
        "SELECT sum(py(price)) AS n FROM bids EMIT CHANGES",
        "SELECT auction, count(*) AS n FROM bids WHERE py(price) > 1 GROUP BY auction EMIT CHANGES",
    ],
)
def test_rejects_nondeterministic_functions_in_state(sql: str) -> None:
    sql = f"CREATE STREAM s AS {sql};"
    unsure = with_python(declared(deterministic=False), sql)
    assert "TG-414" in {error.code for error in unsure.errors}
    assert "TG-414" not in {error.code for error in with_python(declared(), sql).errors}


def test_replacing_a_python_function_replans_its_callers() -> None:
    compiled = clean(with_python(declared(), "CREATE STREAM s AS SELECT py(price) AS p FROM bids;"))
    again = clean(Compiler(CONNECTORS, compiled.catalog).declare(declared(version="2")))
    assert again.replaced
    assert [item.name for item in again.declared] == ["py", "s"]
    conflict = Compiler(CONNECTORS, compiled.catalog).declare(declared("bids"))
    assert [error.code for error in conflict.errors] == ["TG-202"]


def test_version_depends_on_the_source_of_a_function_and_its_globals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, other = version_of(doubled, None), version_of(through, None)
    assert first != other
    assert version_of(doubled, None) == first
    monkeypatch.setattr("tests.plan.test_functions.RATE", 3)
    assert version_of(doubled, None) != first, "a global that it reads"
    assert version_of(through, None) != other, "a global of a function that it calls"
    with pytest.raises(TidegateError, match="the source text of len is not available"):
        version_of(len, None)
    assert version_of(len, "1") != version_of(len, "2")
    with pytest.raises(TidegateError, match="registered is a method"):
        version_of(Owner().registered, None)
    versions = [version_of(with_default(by), None) for by in (1, 2, 1)]
    assert versions[0] == versions[2] != versions[1], "a computed default"


def test_loads_modules_from_the_folder_of_the_script(tmp_path: Path) -> None:
    for folder, increment in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "json.py").write_text(f"def up(x):\n    return x + {increment}\n")
    functions = [load("json:up", str(tmp_path / folder)) for folder in ("one", "two")]
    assert [call(1) for call in functions] == [2, 3], (
        "two modules named json, beside the one of the library"
    )
    assert version_of(functions[0], None) != version_of(functions[1], None)
    import json

    assert json.loads("1") == 1
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(TidegateError, match="broken cannot be loaded: ZeroDivisionError"):
        load("broken:f", str(tmp_path))
    sql = "CREATE FUNCTION up(x BIGINT) RETURNS BIGINT LANGUAGE PYTHON AS 'json:up';"
    compiled = clean(compile_text(sql, str(tmp_path / "one" / "streams.sql")))
    function = compiled.catalog.get("up")
    assert isinstance(function, Function) and function.python is not None
    assert function.python.version == version_of(functions[0], None)


NUMBERS = pa.array([1, None, 3], pa.int64())


@pytest.mark.parametrize(
    ("call", "scalar", "expected"),
    [
        (lambda x: pc.add(x, 1), False, [2, None, 4]),
        (lambda x: pa.chunked_array([x]), False, [1, None, 3]),
        (lambda x: pa.nulls(len(x)), False, [None, None, None]),
        (lambda x: None if x is None else x * 10, True, [10, None, 30]),
    ],
)
def test_returns_the_result_of_a_function(call: Any, scalar: bool, expected: list[Any]) -> None:
    assert with_checks("f", call, scalar, pa.int64(), "BIGINT")(NUMBERS).to_pylist() == expected


def test_calls_a_function_for_selected_rows_only() -> None:
    calls: list[list[Any]] = []

    def recorded(x: pa.Array) -> pa.Array:
        calls.append(x.to_pylist())
        return pc.add(x, 1)

    called = for_selected_rows(with_checks("f", recorded, False, pa.int64(), "BIGINT"), pa.int64())
    for selected, expected in (
        ([True, True, True], [2, None, 4]),
        ([True, None, False], [2, None, None]),
        ([False, False, True], [None, None, 4]),
        ([False, None, False], [None, None, None]),
    ):
        assert called(pa.array(selected), NUMBERS).to_pylist() == expected
    assert calls == [[1, None, 3], [1], [3]], "not called without selected rows"
    sql = f"SELECT {declared().registered_name}(a + {declared().registered_name}(b)) FROM t"
    name = f"{declared().registered_name}_ROWS"
    assert (
        calls_for_selected_rows(sql, "live") == f"SELECT {name}(live, a + {name}(live, b)) FROM t"
    )


def failing(x: Any) -> Any:
    raise KeyError("no\nsuch key")


@pytest.mark.parametrize(
    ("call", "scalar", "message"),
    [
        (lambda x: x[:2], False, "f returned 2 values for 3 rows"),
        (lambda x: [1, 2, 3], False, "f returned a list, not an Arrow array"),
        (
            lambda x: pc.cast(x, pa.int32()),
            False,
            "f returned int32, but its declared type is BIGINT",
        ),
        (lambda x: "a", True, "f returned a value that is not a BIGINT"),
        (lambda x: x + 1, True, "f failed: TypeError: unsupported operand"),
        (failing, False, r"f failed: KeyError: 'no\\nsuch key' \(test_functions.py, line \d+\)"),
    ],
)
def test_reports_invalid_results_and_failures(call: Any, scalar: bool, message: str) -> None:
    with pytest.raises(TidegateError, match=message) as caught:
        with_checks("f", call, scalar, pa.int64(), "BIGINT")(NUMBERS)
    assert caught.value.code == "TG-510"
    assert caught.value.hint


def test_saves_sql_functions_but_not_python_functions(tmp_path: Path) -> None:
    compiled = clean(
        with_python(
            declared(),
            f"{FEE} CREATE STREAM s AS SELECT fee(price, 1) AS f FROM bids;"
            "CREATE STREAM p AS SELECT py(price) AS f FROM bids; CREATE STREAM q AS SELECT f FROM p;",
        )
    )
    directory = DataDirectory(tmp_path)
    directory.open()
    save_declarations(directory, compiled.catalog)
    saved = load_declarations(directory)
    directory.close()
    assert set(saved.unsaved) == {"py", "p", "q"}
    ((_, text),) = saved.scripts
    assert clean(compile_text(text)).catalog.get("s") is not None
