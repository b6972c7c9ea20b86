"""The findings about one item, and how findings that were made apart become one. Plain Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from spark.audit.model import verdict
from spark.audit.model.finding import Evidence, Finding
from spark.audit.model.row import NO_NUMBER, ActionSpan, AuditedEntry

_NO_ENTRY: Final = AuditedEntry(0, NO_NUMBER, 0, 0, 0, b"")


class ItemFindings:
    """Collects the findings about an item: all violations of one entry by one cause are one."""

    __slots__ = ("_held", "h1", "h2")

    def __init__(self, h1: int, h2: int) -> None:
        self.h1, self.h2 = h1, h2
        self._held: dict[tuple[Any, ...], Finding] = {}

    def add(
        self,
        kind: str,
        failure: str,
        entry: AuditedEntry,
        span: ActionSpan,
        evidence: Evidence,
        lineage: int = 0,
        clients: tuple[int, ...] = (),
        longest_us: int = 0,
    ) -> None:
        first_us, last_us, who = span.first_us, span.last_us, entry.who
        node, version = entry.node, entry.version
        key = (kind, failure, node, version, lineage, clients)
        held = self._held.get(key)
        if held is not None:
            held.add(1, first_us, last_us, longest_us, evidence, who)
            return
        place = self.h1, self.h2, node, version, lineage, who
        self._held[key] = Finding(kind, failure, *place, clients, 1, first_us, last_us, longest_us, evidence)

    def add_clock(self, client: int, first_us: int, last_us: int, evidence: Evidence) -> None:
        """The clock of the client is wrong, by the time between the two."""
        span = ActionSpan(client, 0, first_us, last_us)
        self.add(verdict.CLOCK_ANOMALY, "F36", _NO_ENTRY, span, evidence, 0, (client,), last_us - first_us)

    def all(self) -> list[Finding]:
        return list(self._held.values())


def is_poison(finding: Finding) -> bool:
    return verdict.KIND_BY_NAME[finding.kind].is_poison


def merge_findings(findings: Iterable[Finding]) -> list[Finding]:
    """The findings of rows that were judged apart, as if they had been judged together."""
    merged: dict[tuple[Any, ...], Finding] = {}
    for it in findings:
        key = it.h1, it.h2, it.kind, it.failure, it.node, it.version, it.lineage, it.clients
        if key in merged:
            merged[key].add(it.count, it.first_us, it.last_us, it.longest_us, it.evidence, it.who)
        else:
            merged[key] = replace(it)
    return list(merged.values())
