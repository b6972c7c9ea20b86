"""Shadow reads: a share of the hits is served from the database, and the hit is compared beside it.

So an application can run with the cache before it relies on it. A shadow read fills nothing and invalidates nothing.
A difference alone is not a fault: the replica or the invalidation may lag. It is one only if each side is known to
have all that the other has. Then the database was read again at the primary's head after the hit, and the entry,
unchanged, is live on a node that has acknowledged the primary's head of after that read (I1). Put in by
``appclient.cache``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from appclient.database.atleast import is_enclosed
from appclient.telemetry.observer import Answer, Load
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.state import Demand, Read
from freshness.algorithm.view import NodeView
from freshness.errors import FormatError, FreshnessError
from freshness.position.token import EventToken
from freshness.values.codec import decode_value, encode_value

ShadowResult: TypeAlias = Literal["equal", "lag", "differs", "undecided", "failed"]
"""equal: the hit was what the database has. lag: it was not, and a replica or an invalidation was on its way.
differs: nothing explains it. undecided: the node had not acknowledged the primary's head in time, or a server did
not answer. failed: the database or the loader raised, and the hit was served."""

WAITS_SECONDS: Final = (0.0, 0.01, 0.03, 0.1, 0.3)
"""Before each look at a node that may still acknowledge the primary's head. Only reads that differ wait."""

log = logging.getLogger("appclient.shadow")  # applications know this name: docs/application.md


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowReads:
    """``share``: share of the hits. ``load``: reads the database as a miss does. ``find_heads``: reads the heads of
    a lookup's primaries, by lineage. ``look``: the node's records and behind them the item of a lookup, or None.
    ``tell``: callback for each result."""

    share: float
    load: Load
    find_heads: Callable[[Lookup], Mapping[str, EventToken]]
    look: Callable[[Lookup], tuple[NodeView, bytes | None]]
    sleep: Callable[[float], None]
    draw: Callable[[], float]
    tell: Callable[[Lookup, ShadowResult], None]

    def shadowing(self, answer: Answer) -> Answer:
        """``answer``, with a share of its hits served from the database."""

        def read(lookups: Sequence[Lookup], demand: Demand, connection: Any) -> list[Read]:
            reads = answer(lookups, demand, connection)
            if is_enclosed() or demand.is_together:
                return reads  # a part of a value, which is a shadow read itself or none; or of one state with others
            for place, found in enumerate(reads):
                if found.outcome is ReadOutcome.HIT and self.draw() < self.share:
                    reads[place] = self._serve(lookups[place], found, demand)
            return reads

        return read

    def _serve(self, lookup: Lookup, hit: Read, demand: Demand) -> Read:
        """The hit with the database's value in its place."""
        try:
            cached = _spell(None if hit.payload is None else decode_value(hit.payload))
        except FormatError:
            return hit  # it is read from the database anyway
        try:
            (loaded,) = self.load([lookup], demand.at_least)
        except Exception as error:  # noqa: BLE001 - of the database, or of the application's loader: no hit runs it
            log.warning("shadow read of %s failed: %s", lookup.policy.name, error)
            self.tell(lookup, "failed")
            return hit
        try:
            is_equal = _spell(loaded.value) == cached
            result = "equal" if is_equal else self._explain(lookup, hit.payload, cached)
        except FreshnessError as error:
            log.debug("shadow read of %s: %s", lookup.policy.name, error)
            result = "undecided"
        if result == "differs":
            log.error(
                "shadow read: %s in the cache is not what the database has, and no lag explains it",
                lookup.item.decode("ascii", "backslashreplace"),
            )
        self.tell(lookup, result)
        return Read(hit.outcome, None, loaded.value, loaded.tokens, servers=loaded.servers)

    def _explain(self, lookup: Lookup, payload: bytes | None, cached: bytes | None) -> ShadowResult:
        first = self._find_live(lookup, *self.look(lookup))
        if first is None:
            return "lag"
        data, value, is_parted = first
        if is_parted:
            return "undecided"  # whether these are the parts that were read is not known
        if value != payload:
            return "lag"
        # This head names all that the entry has, which was committed before.
        (loaded,) = self.load([lookup], self.find_heads(lookup))
        if _spell(loaded.value) == cached:
            return "lag"
        heads = self.find_heads(lookup)
        for seconds in WAITS_SECONDS:
            self.sleep(seconds)
            view, found = self.look(lookup)
            live = self._find_live(lookup, view, found)
            if live is None or live[0] != data:
                return "lag"
            if not view.find_behind(lookup.policy, heads):
                return "differs"
        return "undecided"

    def _find_live(
        self, lookup: Lookup, view: NodeView, data: bytes | None
    ) -> tuple[bytes, bytes | None, bool] | None:
        """The item, its value, and whether that is in parts; None if it would not be a hit."""
        if not data or view.find_refusal(lookup.policy) is not None:
            return None
        refusal, value = view.judge(lookup.policy, lookup.identity, data)
        return None if refusal not in (None, ReadOutcome.PARTS) else (data, value, refusal is not None)


def _spell(value: object) -> bytes | None:
    """Equal spellings are equal values."""
    return None if value is None else encode_value(value)
