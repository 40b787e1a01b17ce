"""Mutates the SQL of goldens, docs and cases, and checks it: an error or a plan, never a traceback.

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
from tidegate.physical.explain import explain
from tidegate.physical.fingerprint import canonical
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
# Words that may stand for each other: what comes of them is often accepted, and goes deeper.
KIN = [
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
    """What went wrong, where in Tidegate, and the text that did it."""

    kind: str
    text: str
    trace: str


class TooLong(Exception):
    """Checking took longer than anybody waits for."""


def corpus(cases: Path | None) -> list[str]:
    """Scripts that mean something, or nearly."""
    folders = (TESTS / name for name in ("plan/plans", "plan/rewrite", "compile/rejections"))
    found = [path.read_text("utf-8") for folder in folders for path in sorted(folder.glob("*.sql"))]
    found += [nexmark.query(name) for name in nexmark.names()]
    for page in (TESTS.parent / "docs" / "LANGUAGE.md", TESTS.parent / "README.md"):
        blocks = re.findall(r"```sql\n(.*?)```", page.read_text("utf-8"), re.S)
        found += [SOURCES + block for block in blocks]
    files = sorted(cases.rglob("*.*")) if cases is not None else []
    for file in files:
        try:
            found.append(declare(load_conformance_case(file)).script)
        except TidegateError:
            continue
    return found


# Mutations: each makes a list of tokens of another one


def _cut(tokens: list[str], dice: random.Random, pool: list[list[str]]) -> list[str]:
    first = dice.randrange(len(tokens))
    return tokens[:first] + tokens[first + dice.choice([1, 1, 1, 2, 5, 20]) :]


def _double(tokens: list[str], dice: random.Random, pool: list[list[str]]) -> list[str]:
    first = dice.randrange(len(tokens))
    last = first + dice.choice([1, 1, 3, 10, 40])
    return tokens[:last] + tokens[first:last] + tokens[last:]


def _swap(tokens: list[str], dice: random.Random, pool: list[list[str]]) -> list[str]:
    one, other = dice.randrange(len(tokens)), dice.randrange(len(tokens))
    changed = list(tokens)
    changed[one], changed[other] = changed[other], changed[one]
    return changed


def _replace(tokens: list[str], dice: random.Random, pool: list[list[str]]) -> list[str]:
    changed = list(tokens)
    words = [place for place, token in enumerate(tokens) if not token.isspace()]
    changed[dice.choice(words or [0])] = dice.choice(dice.choice(pool))
    return changed


def kin(tokens: list[str], dice: random.Random, pool: list[list[str]]) -> list[str]:
    """A word by one of its kind, or a name by another name of the script."""
    kinds = {word.upper(): kin for kin in KIN for word in kin if word}
    known = [place for place, token in enumerate(tokens) if token.upper().strip("'") in kinds]
    names = [place for place, token in enumerate(tokens) if token.islower() and token[0].isalpha()]
    changed = list(tokens)
    if known and (not names or dice.random() < 0.5):
        place = dice.choice(known)
        other = dice.choice(kinds[tokens[place].upper().strip("'")])
        changed[place] = f"'{other}'" if tokens[place].startswith("'") else other
    elif names:
        changed[dice.choice(names)] = tokens[dice.choice(names)]
    return changed


def _graft(tokens: list[str], dice: random.Random, pool: list[list[str]]) -> list[str]:
    other = dice.choice(pool)
    first, place = dice.randrange(len(other)), dice.randrange(len(tokens))
    piece = other[first : first + dice.choice([2, 5, 10, 30])]
    rest = tokens[place + dice.choice([0, 0, 1, 5]) :]
    return [*tokens[:place], " ", *piece, " ", *rest]


def _odd(tokens: list[str], dice: random.Random, pool: list[list[str]]) -> list[str]:
    place = dice.randrange(len(tokens))
    return [*tokens[:place], dice.choice(ODD), *tokens[place + dice.choice([0, 1]) :]]


def wrap(tokens: list[str], dice: random.Random, pool: list[list[str]]) -> list[str]:
    place = dice.randrange(len(tokens))
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
    return [*tokens[:place], before, tokens[place], after, *tokens[place + 1 :]]


def _statements(tokens: list[str], dice: random.Random, pool: list[list[str]]) -> list[str]:
    """Statements in another order, without one, or with those of another script."""
    parts = "".join(tokens).split(";")
    other = "".join(dice.choice(pool)).split(";")
    parts += dice.sample(other, min(len(other), dice.choice([0, 1, 3])))
    dice.shuffle(parts)
    return TOKEN.findall(";".join(parts[: dice.randint(1, len(parts))])) or [" "]


MUTATIONS: list[Callable[[list[str], random.Random, list[list[str]]], list[str]]] = [
    kin,
    kin,
    kin,
    kin,
    kin,
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


def probe(text: str) -> None:
    """Everything that `check` and `explain` do; whatever it raises is a finding."""
    compiled = compile_text(text, "fuzz.sql")
    for error in (*compiled.errors, *compiled.warnings):
        assert error.render() and error.code.startswith("TG-")
    for item in compiled.declared:
        item.create_sql()
    if compiled.errors:
        return
    for error in compiled.unrunnable:
        assert error.render()
    streams = [item for item in compiled.declared if isinstance(item, Stream)]
    for plan in [stream.plan for stream in streams] + [plan for _, plan in compiled.explained]:
        better = optimize(plan)
        assert (better.changelog, better.key) == (plan.changelog, plan.key), "it promises the same"
        assert [item.id for item in better.fields] == [item.id for item in plan.fields]
        assert explain(plan, "s") and explain(better, "s")
        for leaf in all_stateful(plan_stages(better)):
            canonical(leaf.node)


def found_in(text: str) -> Finding | None:
    def ring(number: int, frame: FrameType | None) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        probe(text)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if f"{os.sep}tidegate{os.sep}" in frame.filename]
        at = own[-1] if own and not isinstance(error, TooLong | RecursionError) else None
        where = f"{Path(at.filename).name}:{at.lineno}" if at else ""
        return Finding(f"{type(error).__name__} {where}", text, traceback.format_exc())
    finally:
        signal.alarm(0)
    return None


def smaller(finding: Finding) -> Finding:
    """The same finding in as few tokens as it takes."""
    tokens = TOKEN.findall(finding.text)
    step = max(len(tokens) // 2, 1)
    while step and "TooLong" not in finding.kind:
        place = 0
        while place < len(tokens):
            fewer = tokens[:place] + tokens[place + step :]
            found = found_in("".join(fewer))
            if found is not None and found.kind == finding.kind:
                tokens, finding = fewer, found
            else:
                place += step
        step //= 2
    return finding


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=Path, help="a folder with test cases, as a corpus too")
    options = parser.parse_args()
    scripts = corpus(options.cases)
    found: dict[str, Finding] = {}
    accepted = 0
    for text in mutants(scripts, options.mutations, random.Random(options.seed)):
        finding = found_in(text)
        if finding is None:
            accepted += not compile_text(text).errors
        elif finding.kind not in found:
            found[finding.kind] = smaller(finding)
            print(f"== {finding.kind}\n{found[finding.kind].text}\n", flush=True)
            print(found[finding.kind].trace.strip().splitlines()[-1], flush=True)
    print(
        f"{options.mutations:,} of {len(scripts)} scripts, {accepted:,} accepted, {len(found)} found"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
