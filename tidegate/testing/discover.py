"""Which files are cases, and which cases are skipped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tidegate.testing.case import Case
from tidegate.testing.fields import CaseError, read_document, shown

SUFFIXES = (".json", ".yaml", ".yml")
SKIPS = "skips.yaml"
# A case has at least one of these; so has one that cannot be read.
_FIELD = re.compile(r"\b(query|script|script_file|sources|steps|expected_rows)\b[\"']?\s*:")


def find_cases(paths: Sequence[Path]) -> list[Path]:
    """The case files below these paths, each once, in order."""
    found: dict[Path, Path] = {}
    for path in paths:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if _looks_like_a_case(file, path))
        elif path.is_file():
            files = [path]
        else:
            raise CaseError(path, "", "there is no such file or folder")
        for file in files:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _looks_like_a_case(file: Path, folder: Path) -> bool:
    """Whether a file of a folder is a case, and not data that lies there."""
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    if hidden or file.suffix not in SUFFIXES or file.name == SKIPS or not file.is_file():
        return False
    try:
        return _FIELD.search(file.read_text("utf-8", errors="replace")) is not None
    except OSError:
        # Loading it says what is wrong.
        return True


class Skips:
    """The skips.yaml files beside the cases: name → reason."""

    def __init__(self, extra: Path | None = None) -> None:
        self._known: dict[Path, dict[str, str]] = {}
        self._extra = _read(extra) if extra is not None else {}

    def apply(self, case: Case) -> Case:
        """The case with the reason to skip it; what the case says itself comes first."""
        if case.skip is not None:
            return case
        if case.name in self._extra:
            return replace(case, skip=self._extra[case.name])
        for folder in case.path.resolve().parents:
            reason = self._in(folder).get(case.name)
            if reason is not None:
                return replace(case, skip=reason)
        return case

    def _in(self, folder: Path) -> dict[str, str]:
        if folder not in self._known:
            file = folder / SKIPS
            self._known[folder] = _read(file) if file.is_file() else {}
        return self._known[folder]


def _read(file: Path) -> dict[str, str]:
    raw = read_document(file)
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise CaseError(file, "", f"expected name: reason, found {shown(raw)}")
    for name, reason in raw.items():
        if not isinstance(reason, str) or not reason.strip():
            raise CaseError(file, str(name), f"expected the reason, found {shown(reason)}")
    return {str(name): reason for name, reason in raw.items()}
