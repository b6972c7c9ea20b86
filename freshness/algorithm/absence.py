"""The nodes that an applier has not joined: why, and from when each may be tried again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from freshness.algorithm.membership import Membership
from freshness.errors import FreshnessError

log = logging.getLogger(__name__)

REJOIN_MIN_SECONDS: Final = 0.2
REJOIN_MAX_SECONDS: Final = 5.0
"""A node that cannot be joined is tried again after a pause that doubles between these two."""


@dataclass(slots=True)
class Rejoin:
    """When a node may be tried again. ``pause_seconds``: how long it is left alone after the next failure."""

    pause_seconds: float
    at: float = float("-inf")


@dataclass(slots=True)
class Absences:
    """See the module. ``is_sender``: see `Applier`. ``problems``: the reason of each node that is out."""

    clock: Callable[[], float]
    is_sender: bool
    problems: dict[str, FreshnessError | str]
    rejoins: dict[str, Rejoin] = field(default_factory=dict)

    def is_over(self, node: str) -> bool:
        """Whether the pause of a node has passed."""
        return self._rejoin_of(node).at <= self.clock()

    def end(self, node: str) -> None:
        """The node is joined: its next pause is the first one again."""
        self.rejoins[node] = Rejoin(self._first_pause_seconds)
        self.problems.pop(node, None)

    def begin(self, member: Membership, why: FreshnessError | str) -> None:
        """End a membership, and leave its node alone for a pause."""
        member.leave()
        self.problems[member.node] = why
        rejoin = self._rejoin_of(member.node)
        rejoin.at = self.clock() + rejoin.pause_seconds
        log.warning(
            "node %s is out: %s; next try in %.1f s. Its lease runs out, its progress stays.",
            member.node,
            why,
            rejoin.pause_seconds,
        )
        rejoin.pause_seconds = min(max(2 * rejoin.pause_seconds, REJOIN_MIN_SECONDS), REJOIN_MAX_SECONDS)

    def begin_failed(self, members: Sequence[Membership], results: Sequence[object]) -> None:
        """The same for each member whose result is an error."""
        for member, result in zip(members, results, strict=True):
            if isinstance(result, FreshnessError):
                self.begin(member, result)

    @property
    def _first_pause_seconds(self) -> float:
        return REJOIN_MIN_SECONDS if self.is_sender else 0.0

    def _rejoin_of(self, node: str) -> Rejoin:
        return self.rejoins.setdefault(node, Rejoin(self._first_pause_seconds))
