"""A finding of a rule. Made by every module of this folder, shown by `invalidator check`, refused by a start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from freshness.errors import SourceUnsuitable
from invalidator.rules.rule import SEVERITIES, Rule, Severity


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One thing that is wrong. ``hint``: the rule's remedy by default. ``where``: the server or node, empty for this
    machine and the file; ``message`` says it, too. ``statements``: statements that mend it, to be run there in this
    order; empty if none does."""

    rule: Rule
    message: str
    hint: str = ""
    where: str = ""
    statements: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "hint", self.hint or self.rule.remedy)

    @property
    def severity(self) -> Severity:
        return self.rule.severity

    @property
    def code(self) -> str:
        return self.rule.code

    def __str__(self) -> str:
        return f"{self.severity} {self.code} {self.rule.slug}: {self.message} ({self.hint})"

    def as_json(self) -> dict[str, Any]:
        return {
            "severity": self.severity,
            "code": self.code,
            "rule": self.rule.slug,
            "where": self.where,
            "message": self.message,
            "hint": self.hint,
            "statements": list(self.statements),
        }


def by_severity(findings: Iterable[CheckFinding]) -> list[CheckFinding]:
    """The errors first; else in their order."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def select_errors(findings: Iterable[CheckFinding]) -> list[CheckFinding]:
    return [finding for finding in findings if finding.severity == "error"]


def require(findings: Sequence[CheckFinding]) -> None:
    """Raise a `SourceUnsuitable` that lists all errors, if there are any."""
    errors = select_errors(findings)
    if errors:
        message = "; ".join(f"{finding.code}: {finding.message}" for finding in errors)
        raise SourceUnsuitable(message, hint="; ".join(finding.hint for finding in errors))
