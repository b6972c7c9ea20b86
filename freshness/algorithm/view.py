"""A reader's copy of the node records, which hits trust for ``node_refresh_seconds`` (docs/algorithm.md#reading).

A view is the answer of one node to one flow of requests. It never outlives its bound, never serves for a fill, and
its age counts from the moment before that flow was sent. Held by the reads' `ReadContext`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from freshness.algorithm.envelope import (
    Filled,
    Kind,
    NodeRecord,
    find_live_value,
    find_record,
    live_prefix,
    split_live,
)
from freshness.algorithm.request import Item, Reply
from freshness.algorithm.rule import (
    ObjectPolicy,
    ReadOutcome,
    Span,
    find_hit_refusal,
    find_lack,
    find_object_refusal,
    has_commit,
    is_outdated,
)
from freshness.errors import FormatError
from freshness.position import decode_position
from freshness.position.token import EventToken

COVERED_MAX: Final = 1024
"""How many (entry, table floor) verdicts a view caches (I6)."""

TTL_SLACK_SECONDS: Final = 1
"""The rest of an item's life can be shorter by so much than the whole seconds that a node says (F50)."""

_NO_BEGINNING: Final = b"no entry begins like this"


class Trust(NamedTuple):
    """Whether entries of ``policy`` on a node may be served. ``beginning``: the first bytes of the common live entry,
    one of one lineage; ``plain``: the same if the position of no such entry must be compared with anything."""

    policy: ObjectPolicy
    refusal: ReadOutcome | None
    plain: bytes
    beginning: bytes


class NodeView:
    """The records of one node, one for each lineage, as read at ``fetched_at`` (the reader's monotonic clock).

    ``node``: its name as configured; a record of another name is not trusted. ``ring``: the ring of the reader.
    ``outdated``: lineages whose record the reader's own clocks refuse, see `Sightings`.
    """

    __slots__ = ("_covered", "_trusts", "_ttl_seconds", "fetched_at", "lives", "outdated", "records", "ring")

    def __init__(
        self, node: str, lineages: Sequence[str], replies: Sequence[Reply], fetched_at: float, ring: int
    ) -> None:
        self.fetched_at, self.ring = fetched_at, ring
        self.records: Mapping[str, NodeRecord | None] = {
            lineage: _find_record(reply, lineage, node) for lineage, reply in zip(lineages, replies, strict=True)
        }
        self.lives = {lineage: record.life if record else None for lineage, record in self.records.items()}
        self._ttl_seconds = {
            lineage: reply.ttl_seconds if isinstance(reply, Item) else 0
            for lineage, reply in zip(lineages, replies, strict=True)
        }
        self.outdated: Collection[str] = ()
        self._covered: dict[tuple[int, bytes], bool] = {}
        self._trusts: dict[int, Trust] = {}

    def find_refusal(self, policy: ObjectPolicy) -> ReadOutcome | None:
        """Why no entry of ``policy`` on this node may be served at all."""
        return self.trust(policy).refusal

    def staleness_seconds(self, policy: ObjectPolicy, now: float) -> float:
        """The largest age that a hit of this node can have, or infinity if no open record vouches for it.

        The age of the primary's heartbeat at the end of the record's lease, as its writer reckoned it, less the rest
        of that lease by the node's own clock, and this copy's age by the reader's. No two clocks are compared.
        """
        worst = 0.0
        for lineage in policy.lineages:
            record = self.records.get(lineage)
            if record is None or not record.is_open:
                return float("inf")
            left = max(0, self._ttl_seconds[lineage] - TTL_SLACK_SECONDS)
            worst = max(worst, record.heartbeat_age_ms / 1000 - left)
        return worst + now - self.fetched_at

    def judge(self, policy: ObjectPolicy, identity: bytes, data: bytes) -> tuple[ReadOutcome | None, bytes | None]:
        """(None, value) for an entry that is live here, else (why not, None). The value is None for "no such row".

        (`ReadOutcome.PARTS`, manifest) for a live one whose value is in parts: it is a hit if they are all there.
        The common entry, of one lineage, is recognised by its first bytes and not decoded.
        """
        trust = self.trust(policy)
        value_at = find_live_value(data, trust.beginning, identity)
        if value_at and (
            trust.plain is trust.beginning
            or self._is_covered_entry(policy, policy.lineages[0], data, len(trust.beginning))
        ):
            return None, data[value_at:]
        try:
            entry = Filled.decode(data)
        except FormatError:
            return ReadOutcome.FOREIGN, None
        refusal = find_hit_refusal(policy, identity, entry, self.records, self.ring)
        if refusal is not None:
            return refusal, None
        return ReadOutcome.PARTS if entry.is_parted else None, entry.value

    def trust(self, policy: ObjectPolicy) -> Trust:
        """`find_live_value` finds what `judge` would in entries that begin with its ``plain``. The others are
        for `judge`."""
        held = self._trusts.get(id(policy))
        if held is not None:
            return held
        refusals = (find_object_refusal(policy, self.ring, self.records.get(lineage)) for lineage in policy.lineages)
        refusal = next((each for each in refusals if each is not None), None)
        if refusal is None and not set(policy.lineages).isdisjoint(self.outdated):
            refusal = ReadOutcome.CLOCK
        plain = beginning = _NO_BEGINNING
        record = self.records.get(policy.lineages[0])
        if record is not None and len(policy.lineages) == 1:
            lack = find_lack(policy, self.ring, record, record.floor)
            if lack not in (ReadOutcome.OBJECT, ReadOutcome.RING):
                beginning = live_prefix(Kind.FILLED, record.lineage, record.life)
            plain = beginning if lack is None else plain
        found = self._trusts[id(policy)] = Trust(policy, refusal, plain, beginning)
        return found

    def find_behind(self, policy: ObjectPolicy, at_least: Mapping[str, EventToken]) -> Sequence[str]:
        """The lineages of the object whose progress is not known to have the commits of ``at_least``."""
        return [
            lineage
            for lineage in policy.lineages
            if lineage in at_least and not has_commit(at_least[lineage], lineage, self.records.get(lineage))
        ]

    def shows(self, policy: ObjectPolicy, data: bytes, at_least: Mapping[str, EventToken]) -> bool:
        """Whether an entry that is live here, and was read after this view, has the commits of ``at_least``."""
        behind = self.find_behind(policy, at_least)
        if not behind:
            return True
        stamps = {stamp.lineage: stamp for stamp in Filled.decode(data).stamps}
        return all(
            has_commit(at_least[lineage], lineage, self.records.get(lineage), stamps[lineage]) for lineage in behind
        )

    def find_spans(self, policy: ObjectPolicy, data: bytes) -> dict[str, Span]:
        """How far an entry that is live here, and was read after this view, shows each lineage of its object. Without
        those of which it is not known."""
        spans: dict[str, Span] = {}
        try:
            stamps = Filled.decode(data).stamps
        except FormatError:
            return spans  # the bound alone is damaged
        for stamp in stamps:
            record = self.records.get(stamp.lineage)
            if stamp.lineage in policy.lineages and record is not None and stamp.until is not None:
                spans[stamp.lineage] = Span(record.progress, stamp.until, (record.epoch, record.primary))
        return spans

    def _is_covered_entry(self, policy: ObjectPolicy, lineage: str, data: bytes, prefix_size: int) -> bool:
        parts = split_live(data, prefix_size)
        return parts is not None and self._is_covered(policy, lineage, parts[0])

    def _is_covered(self, policy: ObjectPolicy, lineage: str, encoded_position: bytes) -> bool:
        record = self.records[lineage]
        assert record is not None
        asked = id(policy), encoded_position  # the policy is of one shard: two can have equal GTIDs
        known = self._covered.get(asked)
        if known is None:
            try:
                position = decode_position(encoded_position)
            except FormatError:
                return False
            known = find_lack(policy, self.ring, record, position) is None
            if len(self._covered) >= COVERED_MAX:
                self._covered.clear()
            self._covered[asked] = known
        return known


@dataclass(slots=True)
class Sightings:
    """A reader's own look at the age of heartbeats: a node whose clock stands still would let no lease end (F105).

    ``clock``: monotonic, in seconds; ``now_us``: the wall clock in microseconds. ``age_max_seconds``: how old an open
    record's heartbeat can be; ``clock_skew_seconds``: how far two wall clocks may differ. Both can only refuse.
    ``tell`` is called with each view.
    """

    clock: Callable[[], float]
    now_us: Callable[[], int]
    age_max_seconds: float
    clock_skew_seconds: float
    tell: Callable[[NodeView], None] = lambda _: None
    _seen: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)

    def note(self, node: str, view: NodeView) -> None:
        """Note the heartbeats that a view shows, and find those that are too old to vouch for the node.

        They are so by the wall clock, or since this reader first saw the very same heartbeat.
        """
        now, now_us = self.clock(), self.now_us()
        outdated = set()
        for lineage, record in view.records.items():
            if record is None:
                continue
            as_of_us, since = self._seen.get((node, lineage), (None, now))
            if as_of_us != record.as_of_us:
                since = now
                self._seen[node, lineage] = record.as_of_us, now
            if now - since > self.age_max_seconds or is_outdated(
                record, now_us, self.age_max_seconds + self.clock_skew_seconds
            ):
                outdated.add(lineage)
        view.outdated = outdated
        self.tell(view)


def _find_record(reply: Reply, lineage: str, node: str) -> NodeRecord | None:
    """The record in a reply; None if the bytes are not a record of this lineage on this node."""
    record = find_record(reply, node)
    return record if record is not None and record.lineage == lineage else None
