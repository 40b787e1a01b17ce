"""`tidegate test`: run cases sequentially on one Spark and report the results."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidegate.errors import TidegateError
from tidegate.testing.case import Case, Outcome, Verdict
from tidegate.testing.loader import Skips, find_cases, load_case
from tidegate.testing.runner import OpenSession, SessionLike, run_case, session_opener

OK, FAILED, INVALID = 0, 1, 2


def main(
    paths: Sequence[Path],
    verbose: bool = False,
    *,
    skips: Path | None = None,
    restart: bool = False,
    spark: Any = None,
) -> int:
    """Run all cases below these paths and return the exit code.

    It is 0 if no case failed, 1 if a case failed, and 2 if a file is invalid. An invalid file
    counts as a failed case and does not stop the others.
    """
    try:
        files = find_cases([Path(path) for path in paths])
        skip_list = Skips(skips)
    except TidegateError as error:
        print(error.render())
        return INVALID
    if not files:
        print("no case found: a case is a .json, .yaml or .yml file")
        return INVALID
    counts: Counter[Verdict] = Counter()
    invalid = False
    with _SharedSpark(spark) as shared:
        for file in files:
            case = _load(file, skip_list)
            if isinstance(case, Case):
                outcome = run_case(case, shared.open, restart=restart)
            else:
                invalid = True
                outcome = case
            counts[outcome.verdict] += 1
            _print_outcome(outcome, verbose)
    passed, failed, skipped = (counts[verdict] for verdict in Verdict)
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    if invalid:
        return INVALID
    return FAILED if failed else OK


def _load(file: Path, skips: Skips) -> Case | Outcome:
    try:
        return skips.apply(load_case(file))
    except TidegateError as error:
        reason = " ".join(f"{error.code}: {error.message}".split())
        return Outcome(file.stem, Verdict.FAILED, 0.0, reason, error.render())


def _print_outcome(outcome: Outcome, verbose: bool) -> None:
    """Print one line; for a failed case also the diff, or the position and hint of the error."""
    if outcome.verdict is Verdict.PASSED:
        if verbose:
            print(f"ok {outcome.name} ({outcome.seconds:.1f} s)", flush=True)
        return
    if outcome.verdict is Verdict.SKIPPED:
        print(f"skip {outcome.name}: {outcome.reason}", flush=True)
        return
    print(f"FAIL {outcome.name}: {outcome.reason}", flush=True)
    if outcome.detail is None:
        return
    if verbose or outcome.is_diff:
        print(outcome.detail, flush=True)
    elif not (outcome.reason or "").startswith("internal error"):
        # The first line repeats the reason.
        rest = outcome.detail.partition("\n")[2]
        print(rest, end="\n" if rest else "", flush=True)


class _SharedSpark:
    """The Spark session of all cases; the first case that needs it starts it."""

    def __init__(self, spark: Any = None) -> None:
        self._spark = spark
        self._owner: Any = None
        self._directory = tempfile.TemporaryDirectory(prefix="tidegate-test-spark-")
        self._opener: OpenSession | None = None

    def __enter__(self) -> _SharedSpark:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):
            if self._owner is not None:
                self._owner.close()
        self._directory.cleanup()

    def open(self, path: Path) -> SessionLike:
        if self._opener is None:
            if self._spark is None:
                from tidegate.session.session import Session

                self._owner = Session(self._directory.name)
                self._spark = self._owner.spark
            self._opener = session_opener(self._spark)
        return self._opener(path)
