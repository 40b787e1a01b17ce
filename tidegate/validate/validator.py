"""Runs every check over a plan and returns all findings, in the order of the SQL."""

from __future__ import annotations

from enum import Enum

from tidegate.plan import nodes as n
from tidegate.validate.checks import CHECKS
from tidegate.validate.finding import Finding, Subject


class Mode(Enum):
    """What happens to findings."""

    REJECT = "reject"
    WARN = "warn"
    OFF = "off"


def validate(plan: n.Emit) -> list[Finding]:
    """All findings of a stream's plan."""
    subject = Subject(plan)
    findings = {
        (finding.code, finding.message, _position(finding)): finding
        for check in CHECKS
        for finding in check(subject)
    }
    return sorted(findings.values(), key=_position)


def _position(finding: Finding) -> int:
    span = finding.span or finding.node.span
    return span.start if span is not None else 0
