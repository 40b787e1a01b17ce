"""A fuzzer of statements: mutates the SQL of goldens, docs and cases, and compiles it.

The result must be errors or a plan, never a traceback.

python -m tests.sql.fuzz_statements --mutations 10000 --seed 1 [--cases FOLDER]
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from benchmarks import nexmark
from tests.conformance.cases import load_conformance_case
from tests.support.compiling import SOURCES, TESTS, compile_text
from tidegate.catalog.objects import Stream
from tidegate.errors import TidegateError
from tidegate.physical.canonical_form import canonical_form
from tidegate.physical.explain import explain
from tidegate.physical.stages import all_stateful, plan_stages
from tidegate.plan.rewrite.optimizer import optimize
from tidegate.testing.declare import declare

TOKEN = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|--[^\n]*|\w+|\s+|[^\w\s]")
ODD = [
    "",
    "''",
    "NULL",
    "0",
    "-1",
    "1e400",
    "99999999999999999999",
    "'\\'",
    "`",
    "é",
    "\0",
    "$",
    "€",
]
ODD += [
    "(",
    ")",
    ";",
    ",",
    "*",
    "[",
    "]",
    "->",
    "::",
    "@",
    "'",
    '"',
    "/*",
    "--",
    "${X}",
    "INTERVAL",
]
SECONDS = 20
# Words that can replace each other. The result is often valid, so more code is reached.
ALTERNATIVES = [
    ["sum", "count", "min", "max", "avg", "first", "last", "collect_list", "median", "stddev"],
    ["TUMBLE", "HOP", "SESSION", "CUMULATE"],
    ["INNER", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI", "CROSS", "ASOF", ""],
    ["UNION", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL"],
    ["row_number", "rank", "dense_rank", "lag", "lead", "ntile", "sum", "first_value"],
    ["CHANGES", "ON UPDATE", "ON WINDOW CLOSE", "FINAL", "EVERY INTERVAL '10' SECOND"],
    ["SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "MILLISECOND"],
    ["BIGINT", "STRING", "DOUBLE", "TIMESTAMP", "ARRAY<INT>", "MAP<STRING, INT>", "DECIMAL(10,2)"],
    ["AND", "OR", "+", "-", "*", "/", "=", "<", ">=", "<>", "<=>", "BETWEEN", "||"],
    ["ROLLUP", "CUBE", "GROUPING SETS", ""],
    ["DISTINCT", "ALL", ""],
    ["WHERE", "HAVING", "QUALIFY", "ON"],
    ["memory", "files", "generator", "console", "blackhole", "kafka", "postgres"],
    ["0", "1", "2", "5", "10", "60", "1001"],
    ["true", "false", "NULL", "1", "'x'"],
]


@dataclass(frozen=True)
class Finding:
    """An unexpected exception: its type and line in Tidegate, and the text that causes it."""

    kind: str
    text: str
    trace: str


class TooLong(Exception):
    """Compiling a script took longer than SECONDS."""


def corpus(cases: Path | None) -> list[str]:
    """Return valid scripts, and scripts that are rejected."""
    folders = (TESTS / name for name in ("plan/plans", "plan/rewrite", "compile/rejections"))
    scripts = [
        path.read_text("utf-8") for folder in folders for path in sorted(folder.glob("*.sql"))
    ]
    scripts += [nexmark.query(name) for name in nexmark.names()]
    for page in (TESTS.parent / "docs" / "LANGUAGE.md", TESTS.parent / "README.md"):
        blocks = re.findall(r"```sql\n(.*?)```", page.read_text("utf-8"), re.S)
        scripts += [SOURCES + block for block in blocks]
    files = sorted(cases.rglob("*.*")) if cases is not None else []
    for file in files:
        try:
            scripts.append(declare(load_conformance_case(file)).script)
        except TidegateError:
            continue
    return scripts


# ---- Mutations of a list of tokens


def _cut(tokens: list[str], dice: random.Random, pool: list[list[str]]) -> list[str]:
    first = dice.randrange(len(tokens))
    return tokens[:first] + tokens[first + dice.choice([1, 1, 1, 2, 5, 20]) :]


def _double(tokens: list[str], dice: random.Random, pool: list[list[str]]) -> list[str]:
    first = dice.randrange(len(tokens))
    last = first + dice.choice([1, 1, 3, 10, 40])
    return tokens[:last] + tokens[first:last] + tokens[last:]


def _swap(tokens: list[str], dice: random.Random, pool: list[list[str]]) -> list[str]:
    first, second = dice.randrange(len(tokens)), dice.randrange(len(tokens))
    changed = list(tokens)
    changed[first], changed[second] = changed[second], changed[first]
    return changed


def _replace(tokens: list[str], dice: random.Random, pool: list[list[str]]) -> list[str]:
    changed = list(tokens)
    words = [index for index, token in enumerate(tokens) if not token.isspace()]
    changed[dice.choice(words or [0])] = dice.choice(dice.choice(pool))
    return changed


def replace_by_alternative(
    tokens: list[str], dice: random.Random, pool: list[list[str]]
) -> list[str]:
    """Replace a word by an alternative, or a name by another name of the script."""
    kinds = {word.upper(): group for group in ALTERNATIVES for word in group if word}
    words = [index for index, token in enumerate(tokens) if token.upper().strip("'") in kinds]
    names = [index for index, token in enumerate(tokens) if token.islower() and token[0].isalpha()]
    changed = list(tokens)
    if words and (not names or dice.random() < 0.5):
        index = dice.choice(words)
        other = dice.choice(kinds[tokens[index].upper().strip("'")])
        changed[index] = f"'{other}'" if tokens[index].startswith("'") else other
    elif names:
        changed[dice.choice(names)] = tokens[dice.choice(names)]
    return changed


def _graft(tokens: list[str], dice: random.Random, pool: list[list[str]]) -> list[str]:
    other = dice.choice(pool)
    first, index = dice.randrange(len(other)), dice.randrange(len(tokens))
    piece = other[first : first + dice.choice([2, 5, 10, 30])]
    rest = tokens[index + dice.choice([0, 0, 1, 5]) :]
    return [*tokens[:index], " ", *piece, " ", *rest]


def _odd(tokens: list[str], dice: random.Random, pool: list[list[str]]) -> list[str]:
    index = dice.randrange(len(tokens))
    return [*tokens[:index], dice.choice(ODD), *tokens[index + dice.choice([0, 1]) :]]


def wrap(tokens: list[str], dice: random.Random, pool: list[list[str]]) -> list[str]:
    index = dice.randrange(len(tokens))
    before, after = dice.choice(
        [
            ("(", ")"),
            ("(" * 60, ")" * 60),
            ("sum(", ")"),
            ("first(", ")"),
            ("explode(", ")"),
            ("TUMBLE(", ", INTERVAL '1' MINUTE)"),
            ("(SELECT ", ")"),
            ("(SELECT * FROM ", ")"),
            ("CASE WHEN ", " THEN 1 END"),
            ("count(DISTINCT ", ") FILTER (WHERE true)"),
            ("row_number() OVER (ORDER BY ", ")"),
            ("x -> ", ""),
            ("NOT ", ""),
            ("", " AS x"),
            ("", " IS NULL"),
            ("", " IN (SELECT auction FROM bids)"),
            ("", "[0]"),
            ("", ".a"),
        ]
    )
    return [*tokens[:index], before, tokens[index], after, *tokens[index + 1 :]]


def _statements(tokens: list[str], dice: random.Random, pool: list[list[str]]) -> list[str]:
    """Reorder or remove statements, or add statements of another script."""
    parts = "".join(tokens).split(";")
    other = "".join(dice.choice(pool)).split(";")
    parts += dice.sample(other, min(len(other), dice.choice([0, 1, 3])))
    dice.shuffle(parts)
    return TOKEN.findall(";".join(parts[: dice.randint(1, len(parts))])) or [" "]


MUTATIONS: list[Callable[[list[str], random.Random, list[list[str]]], list[str]]] = [
    replace_by_alternative,
    replace_by_alternative,
    replace_by_alternative,
    replace_by_alternative,
    replace_by_alternative,
    _cut,
    _double,
    _swap,
    _replace,
    _replace,
    _graft,
    _graft,
    _odd,
    wrap,
    wrap,
    _statements,
]


def mutants(scripts: list[str], count: int, dice: random.Random) -> Iterator[str]:
    pool = [TOKEN.findall(script) for script in scripts]
    for _ in range(count):
        tokens = list(dice.choice(pool))
        for _ in range(dice.choice([1, 1, 1, 2, 3, 5])):
            tokens = dice.choice(MUTATIONS)(tokens, dice, pool) or [" "]
        yield "".join(tokens)


def check(text: str) -> None:
    """Compile, optimize and explain a script; any exception is a finding."""
    compiled = compile_text(text, "fuzz.sql")
    for error in (*compiled.errors, *compiled.warnings):
        assert error.render() and error.code.startswith("TG-")
    for item in compiled.declared:
        item.create_sql()
    if compiled.errors:
        return
    for error in compiled.rejections:
        assert error.render()
    streams = [item for item in compiled.declared if isinstance(item, Stream)]
    for plan in [stream.plan for stream in streams] + [plan for _, plan in compiled.explained]:
        optimized = optimize(plan)
        assert (optimized.changelog, optimized.key) == (plan.changelog, plan.key), (
            "the optimizer keeps the properties"
        )
        assert [item.id for item in optimized.fields] == [item.id for item in plan.fields]
        assert explain(plan, "s") and explain(optimized, "s")
        for leaf in all_stateful(plan_stages(optimized)):
            canonical_form(leaf.node)


def find_exception(text: str) -> Finding | None:
    def on_alarm(number: int, frame: FrameType | None) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(SECONDS)
    try:
        check(text)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        frames_in_tidegate = [
            frame for frame in frames if f"{os.sep}tidegate{os.sep}" in frame.filename
        ]
        last = (
            frames_in_tidegate[-1]
            if frames_in_tidegate and not isinstance(error, TooLong | RecursionError)
            else None
        )
        location = f"{Path(last.filename).name}:{last.lineno}" if last else ""
        return Finding(f"{type(error).__name__} {location}", text, traceback.format_exc())
    finally:
        signal.alarm(0)
    return None


def minimize(finding: Finding) -> Finding:
    """Remove tokens from a finding as long as the exception stays the same."""
    tokens = TOKEN.findall(finding.text)
    step = max(len(tokens) // 2, 1)
    while step and "TooLong" not in finding.kind:
        index = 0
        while index < len(tokens):
            fewer = tokens[:index] + tokens[index + step :]
            smaller = find_exception("".join(fewer))
            if smaller is not None and smaller.kind == finding.kind:
                tokens, finding = fewer, smaller
            else:
                index += step
        step //= 2
    return finding


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=Path, help="a folder of test cases to add to the corpus")
    options = parser.parse_args()
    scripts = corpus(options.cases)
    findings: dict[str, Finding] = {}
    accepted = 0
    for text in mutants(scripts, options.mutations, random.Random(options.seed)):
        finding = find_exception(text)
        if finding is None:
            accepted += not compile_text(text).errors
        elif finding.kind not in findings:
            findings[finding.kind] = minimize(finding)
            print(f"== {finding.kind}\n{findings[finding.kind].text}\n", flush=True)
            print(findings[finding.kind].trace.strip().splitlines()[-1], flush=True)
    print(
        f"{options.mutations:,} of {len(scripts)} scripts, {accepted:,} accepted, {len(findings)} findings"
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
