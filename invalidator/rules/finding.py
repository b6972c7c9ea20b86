"""What a rule finds. Made by every module of this folder, shown by `invalidator check`, refused by a start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from freshness.errors import SourceUnsuitable

Severity = Literal["error", "warning", "note"]

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")
"""An error keeps `run` from starting, loses an invalidation or lets nothing be stored. A warning costs hits, or costs
them in a failure. A note tells what the caveats say of this set-up, or what could not be asked."""

CAVEAT: Final = "caveats"
"""The code of a finding that is no failure of the catalogue: see docs/caveats.md."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. ``code``: the F-number of the failure that it leads to, or `CAVEAT`.

    ``where``: the server or node, empty for this machine and the file. ``statements``: what mends it, to be run there
    in this order; empty where no statement does. ``is_safe``: they only add to what the server tells, can neither
    break a replication nor lose a row, and may be run without a thought.
    """

    severity: Severity
    code: str
    message: str
    hint: str
    where: str = ""
    statements: tuple[str, ...] = ()
    is_safe: bool = False

    def __str__(self) -> str:
        return f"{self.severity} {self.code}: {self.message} ({self.hint})"


def require(findings: Iterable[Finding]) -> None:
    """Raise `SourceUnsuitable` that lists all errors; nothing where there are only warnings and notes."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        message = "; ".join(f"{finding.code}: {finding.message}" for finding in errors)
        raise SourceUnsuitable(message, hint="; ".join(finding.hint for finding in errors))
