"""The epochs of a case: every `add` that is left is exactly one epoch.

`per_row` puts one row in an epoch, the sources taking turns; explicit watermarks end an epoch each;
otherwise an add step is one epoch, and a case without steps is one epoch with all its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tidegate.testing.case import Add, Case, CaseSource, EndOfInput, Mark, Restart, Row, Step
from tidegate.testing.marks import marked_row

Rows = tuple[Row, ...]


def epochs_of(case: Case, restart: bool = False) -> tuple[Step, ...]:
    """The steps of a run; with `restart` there is one in the middle if the case has none."""
    steps = _laid_out(case)
    if restart and not any(isinstance(step, Restart) for step in steps):
        steps = _with_restart(case, steps)
    if case.flush and not any(isinstance(step, EndOfInput) for step in steps):
        steps.append(EndOfInput())
    return tuple(steps)


def _laid_out(case: Case) -> list[Step]:
    lookups = tuple(
        (source.name, source.rows)
        for source in case.sources
        if source.is_lookup and source.rows and not (case.steps and case.rows_of(source.name))
    )
    steps: list[Step] = [Add(lookups)] if lookups else []
    script = case.steps or (_all_rows(case),)
    read: Counter[str] = Counter()
    for step in script:
        if isinstance(step, Add):
            steps += _epochs(case, step, read)
        else:
            steps.append(step)
    return steps


def _all_rows(case: Case) -> Add:
    return Add(
        tuple(
            (source.name, source.rows)
            for source in case.sources
            if source.rows and not source.is_lookup
        )
    )


def _epochs(case: Case, step: Add, read: Counter[str]) -> Iterator[Add]:
    """One step as epochs; `read` counts the rows of each source so far."""
    whole: list[tuple[str, Rows]] = []
    turns: list[list[Add]] = []
    for name, rows in step.rows:
        source = case.source(name)
        first = read[name]
        read[name] += len(rows)
        if source is not None and source.is_lookup:
            # A lookup table is read when a row asks: it must be complete before that row.
            yield Add(((name, rows),))
        elif source is not None and source.marks:
            turns.append([Add(((name, part),)) for part in _marked(source, rows, first)])
        elif case.watermark_model in ("per_row", "explicit"):
            turns.append([Add(((name, (row,)),)) for row in rows])
        else:
            whole.append((name, rows))
    if whole:
        yield Add(tuple(whole))
    for turn in range(max((len(parts) for parts in turns), default=0)):
        for parts in turns:
            if turn < len(parts):
                yield parts[turn]


def _marked(source: CaseSource, rows: Rows, first: int) -> Iterator[Rows]:
    """Rows cut after each explicit watermark, which goes with the last row before it."""
    time = source.time_column
    assert time is not None, "explicit watermarks need a time column"
    marks = {mark.row_index: mark for mark in source.marks}
    if first == 0 and min(marks) < 0:
        yield (marked_row(time, Mark(-1, marks[min(marks)].watermark_ms)),)
    part: list[Row] = []
    for index, row in enumerate(rows, first):
        part.append(row)
        if index in marks:
            part.append(marked_row(time, marks[index]))
            yield tuple(part)
            part = []
    if part:
        yield tuple(part)


def _with_restart(case: Case, steps: list[Step]) -> list[Step]:
    """A restart between two epochs; a single epoch is cut in two where that changes nothing."""
    places = [index for index, step in enumerate(steps) if isinstance(step, Add)]
    if len(places) == 1 and case.late_is_none and not case.steps:
        index = places[0]
        only = steps[index]
        assert isinstance(only, Add), "places are those of the epochs"
        first = tuple((name, rows[: len(rows) // 2]) for name, rows in only.rows)
        second = tuple((name, rows[len(rows) // 2 :]) for name, rows in only.rows)
        return [*steps[:index], Add(first), Restart(), Add(second), *steps[index + 1 :]]
    if not places:
        return steps
    middle = places[(len(places) - 1) // 2] + 1
    return [*steps[:middle], Restart(), *steps[middle:]]
