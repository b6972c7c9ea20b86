"""The one rule: may this value be stored, and may this entry be served (docs/algorithm.md#reading).

Pure functions of records, stripes and tokens; ``freshness.algorithm.read`` reads them in the order that the rule
needs. Doubt never fills: a missing, unknown or incomparable part is a refusal, with its cause.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from freshness.algorithm.envelope import Filled, NodeRecord, Stamp, Stripe
from freshness.position import Position
from freshness.position.token import EventToken


class ReadOutcome(Enum):
    """The end of a read: served from the cache; from the database and stored; or from there and not stored, and
    why."""

    HIT = "hit"
    LOCAL_HIT = "hit in this process, without the node"
    STALE_SERVED = "an old value that the configuration allows: on_stale, stale_while_revalidate_seconds"
    MOVED = "hit on the node that held the key before, and stored on the present one"
    FILLED = "filled"
    LOST_RACE = "invalidated while it was read"
    BOUNDED = "perhaps an old value: the replica lacks an acknowledged change, and the primary may not be asked"
    STRIPE = "the replica lacks a recent invalidation of this key, or of one that shares its stripe"
    STRIPE_ABSENT = "the stripe of this key is missing; an invalidator puts it back"
    FLOOR = "the replica is behind the node's floor"
    TABLE_FLOOR = "the replica is behind a statement that changed the whole table"
    OBJECT = "the invalidator does not cover this object, or not in this definition"
    EPOCH = "the read belongs to another history than the node"
    RING = "the node belongs to another set of nodes than this client's"
    CLOSED = "the node is not caught up"
    NO_RECORD = "no invalidator vouches for the node"
    CLOCK = "the node's heartbeat is too old by this client's own clocks: a clock stands still, or is wrong"
    LIFE = "the node lost its memory during the read"
    STALE = "the node is staler than the caller allows"
    BEHIND = "the entry is not known to have the commit that the caller asks for"
    TOGETHER = "read in one snapshot of the database, since the entries are not of one state"
    OWN_TRANSACTION = "the caller's connection has an open transaction, and was read itself"
    NODE_DOWN = "the node did not answer"
    FOREIGN = "the item in the cache is not one of ours"
    IDENTITY = "the item in the cache is of another key or spelling"
    DEAD = "the entry belongs to a previous life of the node"
    NO_TOKEN = "the server read gives no engine-visible position"
    KEY = "the key's collation does not allow to cache this"
    PARTS = "a part of a large value is missing, or is of another value"
    TOO_LARGE = "the value is too large, for this configuration or for the node"

    @property
    def is_hit(self) -> bool:
        """Whether the value is of the cache and not of the database."""
        return self in _HITS


_HITS: Final = frozenset((ReadOutcome.HIT, ReadOutcome.LOCAL_HIT, ReadOutcome.STALE_SERVED, ReadOutcome.MOVED))


@dataclass(frozen=True, slots=True)
class ObjectPolicy:
    """The properties of an object that the rule needs. ``fingerprint`` identifies its definition (F70).
    ``previous_rings``: rings that place the keys in question on the same node as the reader's present ring."""

    name: str
    fingerprint: int
    tables: tuple[str, ...]
    lineages: tuple[str, ...]
    value_ttl_seconds: int
    previous_rings: tuple[int, ...] = ()

    def spread_ttl(self, chance: float) -> int:
        """The TTL of one entry: up to a tenth less, by a number in [0, 1), so that entries of one moment do not
        expire together (F47)."""
        return max(1, int(self.value_ttl_seconds * (1 - 0.1 * chance)))


def find_fill_refusal(
    policy: ObjectPolicy,
    ring: int,
    records: Mapping[str, NodeRecord | None],
    stripes: Mapping[str, Stripe | None],
    tokens: Mapping[str, EventToken],
) -> ReadOutcome | None:
    """The cause why a value read at ``tokens`` must not be stored; None if it may be.

    It may iff, for each lineage of the object, the node is open in this ring and epoch and covers the object, the
    stripe of the key is there in the node's present life, and floor ∪ stripe ∪ table floors ∪ starts of object and
    ring ⊆ position of the token. ``stripes``: stripe of the key by lineage; None if it is absent or of another life.
    """
    for lineage in policy.lineages:
        refusal = _find_lineage_refusal(policy, ring, records.get(lineage), stripes.get(lineage), tokens.get(lineage))
        if refusal is not None:
            return refusal
    return None


def _find_lineage_refusal(
    policy: ObjectPolicy, ring: int, record: NodeRecord | None, stripe: Stripe | None, token: EventToken | None
) -> ReadOutcome | None:
    closed = find_object_refusal(policy, ring, record)
    if closed is not None:
        return closed
    assert record is not None
    if token is None:
        return ReadOutcome.NO_TOKEN
    if token.epoch != record.epoch:
        return ReadOutcome.EPOCH
    if not token.position.contains(record.floor):
        return ReadOutcome.FLOOR
    lack = find_lack(policy, ring, record, token.position)
    if lack is not None:
        return lack
    if stripe is None or stripe.life != record.life:
        return ReadOutcome.STRIPE_ABSENT
    return None if token.position.contains(stripe.position) else ReadOutcome.STRIPE


def find_required(
    policy: ObjectPolicy, ring: int, records: Mapping[str, NodeRecord | None], stripes: Mapping[str, Stripe | None]
) -> dict[str, EventToken]:
    """The events that a row must show by that rule, by lineage: floor ∪ stripe ∪ table floors ∪ starts of object
    and ring (I10).

    Every invalidation of the key that the node had acknowledged before its stripe and its record were read is in
    them. The record's progress takes the place of a stripe that is absent. Nothing is known of a lineage whose node
    is closed, or does not cover the object.
    """
    required: dict[str, EventToken] = {}
    for lineage in policy.lineages:
        record, stripe = records.get(lineage), stripes.get(lineage)
        if record is None or find_object_refusal(policy, ring, record) is not None:
            continue
        known = record.progress if stripe is None or stripe.life != record.life else stripe.position
        floors = [record.table_floors[table] for table in policy.tables if table in record.table_floors]
        of_ring = record.find_start((ring, *policy.previous_rings))
        of_object = _find_start(policy, record)
        assert of_ring is not None, "the record does not refuse the ring"
        assert of_object is not None, "nor the object"
        position = known.union_all([record.floor, of_object, of_ring, *floors])
        required[lineage] = EventToken(lineage, lineage, record.epoch, 0, position)
    return required


def find_record_refusal(record: NodeRecord | None, rings: Collection[int]) -> ReadOutcome | None:
    """The cause why no item of this node may be trusted by one of these rings; None if they may be."""
    if record is None:
        return ReadOutcome.NO_RECORD
    if record.find_start(rings) is None:
        return ReadOutcome.RING
    if not record.is_open:
        return ReadOutcome.CLOSED
    return None


def find_object_refusal(policy: ObjectPolicy, ring: int, record: NodeRecord | None) -> ReadOutcome | None:
    """The same for the items of an object, which must be covered in this definition."""
    refusal = find_record_refusal(record, (ring, *policy.previous_rings))
    if refusal is None and record is not None and _find_start(policy, record) is None:
        return ReadOutcome.OBJECT
    return refusal


def _find_start(policy: ObjectPolicy, record: NodeRecord) -> Position | None:
    coverage = record.find_coverage(policy.name, policy.fingerprint)
    return None if coverage is None else coverage.start


def find_lack(policy: ObjectPolicy, ring: int, record: NodeRecord, position: Position) -> ReadOutcome | None:
    """The start or table floor of the object that a position lacks, or that there is none; else None: the node was
    sent all later events of a key that these rings place there."""
    of_object = _find_start(policy, record)
    if of_object is None:
        return ReadOutcome.OBJECT
    of_ring = record.find_start((ring, *policy.previous_rings))
    if of_ring is None:
        return ReadOutcome.RING
    if not all(start.is_empty or position.contains(start) for start in (of_object, of_ring)):
        return ReadOutcome.FLOOR
    for table in policy.tables:
        floor = record.table_floors.get(table)
        if floor is not None and not position.contains(floor):
            return ReadOutcome.TABLE_FLOOR
    return None


def is_outdated(record: NodeRecord, now_us: int, age_max_seconds: float) -> bool:
    """Whether the heartbeat that a record stands for is older than that by the wall clock of this machine (F105)."""
    return now_us - record.as_of_us > age_max_seconds * 1_000_000


def find_hit_refusal(
    policy: ObjectPolicy, identity: bytes, entry: Filled, records: Mapping[str, NodeRecord | None], ring: int
) -> ReadOutcome | None:
    """The cause why an entry of a trusted node is not a hit: another key, an old life, a table floor; else None.

    An old life, too, if it may be of a time when the node was not sent the key's events: it lacks the start of the
    object, or of each ring that places the key here.
    """
    if entry.identity != identity:
        return ReadOutcome.IDENTITY
    stamps = {stamp.lineage: stamp for stamp in entry.stamps}
    for lineage in policy.lineages:
        stamp, record = stamps.get(lineage), records.get(lineage)
        if stamp is None or record is None or stamp.life != record.life or stamp.epoch != record.epoch:
            return ReadOutcome.DEAD
        lack = find_lack(policy, ring, record, stamp.position)
        if lack is not None:
            return ReadOutcome.DEAD if lack is ReadOutcome.FLOOR else lack
    return None


@dataclass(frozen=True, slots=True)
class Span:
    """How far a live entry shows one lineage: it has all events of its key in ``since``, the progress of the record
    that was read before it, and none beyond ``until``. ``history``: the epoch and the primary of that record."""

    since: Position
    until: Position
    history: tuple[int, str]


def are_of_one_state(spans: Collection[Span]) -> bool:
    """Whether entries show one and the same state of a lineage (I11).

    It is the least progress of their nodes, which the log once had as its end: all entries have all events until
    there, and none beyond. The progresses of one history are beginnings of its log, so one of them is the least.
    """
    if len({span.history for span in spans}) > 1:
        return False
    since = {id(span.since): span.since for span in spans}.values()
    return all(position.contains(span.until) for position in since for span in spans)


def has_commit(asked: EventToken, lineage: str, record: NodeRecord | None, stamp: Stamp | None = None) -> bool:
    """Whether every live entry of a node is known to have the commits of ``asked``, or the one with this ``stamp``.

    ``record`` was read before the entry, so the entry is the row at its own position ∪ the record's progress (I9,
    docs/algorithm.md#reading). Each lineage is judged on its own. Another lineage, epoch or flavor: False.
    """
    if record is None or asked.lineage != lineage or asked.epoch != record.epoch:
        return False
    position = record.progress if stamp is None else record.progress.union(stamp.position)
    return position.contains(asked.position)
