"""An invalidator's membership in one cache node: its knowledge of the node, and its CAS chain on the node's record.

The record is the only shared truth about a node (docs/concepts.md#one-record-for-a-node). Every write of it is a
CAS on a version that this membership has read on the same connection, so that a paused or second invalidator can
never take the record back. After any failure the membership is over and its owner joins the node again
(``freshness.algorithm.admission``), which begins by reading the record: versions never outlive a connection, since a
restarted node counts them from the start (ADR 0005).

Applying batches and publishing progress is ``freshness.algorithm.apply``. Nothing here decides what is acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import Final

from freshness.algorithm.envelope import Coverage, NodeRecord, find_record, record_key, resume_key
from freshness.algorithm.request import (
    CONFLICT,
    MISSING,
    Add,
    Cas,
    Delete,
    Flow,
    Get,
    Head,
    Item,
    Procedure,
    ReadHead,
    Stored,
    Version,
)
from freshness.algorithm.witness import Witness, tell_publication
from freshness.errors import MembershipLost, NodeUnavailable
from freshness.keys.placement import Placement
from freshness.position import Position, empty_position

CAS_ATTEMPTS_MAX: Final = 16
"""Lost races for a record before the membership is given up (I6)."""


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """The settings that all nodes of a lineage share.

    ``objects``: name → fingerprint of its definition. ``stripes``: number of the lineage's stripes on a node that
    begins a life. ``lease_seconds`` is L. ``is_serving``: False for a shard that is followed and not read: its
    records are kept, and never open. ``topology``: the number of the configuration. A record of a higher one is not
    touched. ``placements``: by ring, that of ``ring`` and of each that is served beside it. ``altered``: names and
    fingerprints of objects as this process has covered them before their key columns were altered.
    """

    namespace: str
    lineage: str
    ring: int
    objects: Mapping[str, int]
    stripes: int
    lease_seconds: int
    heartbeat_age_max_seconds: float
    node_refresh_seconds: float
    is_serving: bool = True
    topology: int = 1
    placements: Mapping[int, Placement] = field(default_factory=dict)
    altered: Set[tuple[str, int]] = frozenset()

    @property
    def rings(self) -> Set[int]:
        return {self.ring, *self.placements}

    def __post_init__(self) -> None:
        assert self.lease_seconds >= 2, "L < 2: nodes count whole seconds"


@dataclass(frozen=True, slots=True)
class HeartbeatSeen:
    """This invalidator's own heartbeat as it came back through the stream (F71).

    ``written_at``: this process's clock when it began to write; ``wall_us``: the time in the row, for display;
    ``primary``: the identity of the server that it was written to.
    """

    written_at: float
    wall_us: int
    primary: str = ""


@dataclass(slots=True)
class Membership:
    """One invalidator's knowledge of one node, from a join to the first failure.

    Theory of operation. The node record holds three promises: *progress*, the events that the node has acknowledged;
    *floor*, the position at which its life began, which every fill must contain; and the *lease*, its own TTL, during
    which hits are allowed. One CAS, `try_store`, decides the lease for every write and stores all three.

    * **Progress.** ``applied`` grows only by events that the node has acknowledged in this life (I4), be it to this
      invalidator or to another one. An event that progress names stands in each stripe that it concerns and that is
      there (I2). Progress ends before a raise of a table until no reader trusts a record without it (F21).
    * **Lease.** A record is open only while this invalidator's own heartbeat is young (F71), and was written to the
      primary that the record follows (F101). A node that was joined closed opens when ``target`` is applied and a
      heartbeat from after ``opens_after`` has come back.
    * **Resume.** A copy of the record without TTL lets a later join revive the life after a lapse. It is written
      after the record, so it never claims more (ADR 0008).

    After any failure `leave` forgets the record with its version, and the next use must be a join (ADR 0005).
    """

    node: str
    policy: NodePolicy
    clock: Callable[[], float]
    """In seconds; it goes on while the machine is suspended."""
    nonce: Callable[[], bytes]
    """A new random life or tenure."""

    # -- position: what was streamed, sent and acknowledged -----------------------------------------------

    streamed: Position
    """Everything that this process has streamed, in the history of ``streamed_epoch``."""
    streamed_epoch: int = 0
    applied: Position = field(init=False)
    """The events that this membership answers for: acknowledged by the node in this life."""

    held: list[tuple[float, Position]] = field(default_factory=list)
    """Until when progress must not go beyond which position; at most two, the first ends first."""

    # -- record and version: the CAS chain ----------------------------------------------------------------

    record: NodeRecord | None = None
    """The record as last read or stored; None while not joined."""
    version: Version = 0
    """The CAS unique of ``record`` on this connection; 0 if the node has none."""
    witness: Witness | None = None
    """The recorder of what was acknowledged, if there is one."""

    # -- lease: until when, and whether the record is open ------------------------------------------------

    lease_until: float = 0.0
    """Until then the record surely lives, by ``clock``."""
    expires_by: float = 0.0
    """Then it has surely expired, unless it was written again."""
    published_at: float = float("-inf")
    """When progress was last published."""
    heartbeat: HeartbeatSeen | None = None
    """The latest of this invalidator's own heartbeats that has come back through the stream."""
    is_covered: bool = True
    """False: the record does not name the objects and rings of this configuration yet, see `cover`."""
    opens_after: float = float("-inf")
    """A heartbeat that was begun before that moment does not open the record."""
    altered_by: Position | None = None
    """`everything` at the join: all statements that had altered the schema when this process read it."""
    target: Position | None = None
    """A closed node opens when this position is applied; None if nothing is outstanding."""

    # -- resume: the copy without TTL ---------------------------------------------------------------------

    resume_version: Version | None = None
    """The CAS unique of the resume copy; None if the node has none."""
    resume_written_at: float = float("-inf")

    def __post_init__(self) -> None:
        self.applied = empty_position(self.streamed.flavor)

    @property
    def record_key(self) -> bytes:
        return record_key(self.policy.namespace, self.policy.lineage)

    @property
    def resume_key(self) -> bytes:
        return resume_key(self.policy.namespace, self.policy.lineage)

    @property
    def is_joined(self) -> bool:
        return self.record is not None

    def joined_record(self) -> NodeRecord:
        assert self.record is not None, f"{self.node} is used before it is joined"
        return self.record

    def leave(self) -> None:
        """Forget everything: the next use must be a join."""
        self.record = self.target = self.heartbeat = self.resume_version = None
        self.resume_written_at = self.published_at = self.opens_after = float("-inf")
        self.version, self.is_covered, self.held = 0, True, []

    def adopt(self, record: NodeRecord, item: Item, read_at: float) -> None:
        """Take a record as read from the node."""
        self.record, self.version = record, item.version
        self.lease_until = read_at + max(0, item.ttl_seconds) - 1
        self.expires_by = self.clock() + max(0, item.ttl_seconds)
        self.applied = self.applied.union(record.progress)

    def start_from(self, position: Position) -> None:
        """Answer for ``position`` from here on."""
        self.applied = position

    def hold_progress(self) -> None:
        """Tables were raised in the record, beyond ``applied``. Hits trust a copy from before that for a while.

        Nothing else waits: the lease says what the record shows, and the record has the raise. A hold that has begun
        is not prolonged by further raises, which share the next one: progress never stands still (I6).
        """
        before = self.held.pop()[1] if len(self.held) == 2 else self.applied
        self.held.append((self.clock() + self.policy.node_refresh_seconds, before))

    def find_acknowledged(self, applied: Position) -> Position:
        """The part of ``applied`` that may be published."""
        now = self.clock()
        self.held = [each for each in self.held if each[0] > now]
        return self.held[0][1] if self.held else applied

    def everything(self, head: Head) -> Position:
        """All events that may have happened before now: the primary's head, and everything streamed from its history.

        A stream can be ahead of what the primary shows (F2). Events of another history never come again.
        """
        return head.position.union(self.streamed) if head.epoch == self.streamed_epoch else head.position

    # -- the CAS chain ------------------------------------------------------------------------------------

    def try_store(self, record: NodeRecord) -> Procedure[bool]:
        """One CAS on the record. False: another invalidator wrote first (see `reread`).

        The lease is decided here, for every write, and nowhere else. A missing record is never put back from memory:
        that raises `MembershipLost`.
        """
        now = self.clock()
        leased, ttl_seconds = self._lease(record, now)
        (reply,) = yield Flow(self.node, (Cas(self.record_key, leased.encode(), self.version, ttl_seconds),))
        if isinstance(reply, Stored):
            self.record, self.version, self.lease_until = leased, reply.version, now + ttl_seconds
            self.expires_by = self.clock() + self.policy.lease_seconds
            return True
        if reply is CONFLICT:
            return False
        if reply is MISSING:
            raise MembershipLost(
                f"{self.node}: the node record has lapsed or the node lost its memory",
                hint="it is joined again; this happens after pauses longer than lease_seconds",
            )
        raise NodeUnavailable(f"{self.node} refused the node record: {reply}", hint="the node has no memory left")

    def _lease(self, record: NodeRecord, now: float) -> tuple[NodeRecord, int]:
        """(record, TTL): open only while this invalidator may vouch for the node, else closed."""
        # Nodes keep an item up to a second longer than asked (F50); a lease must not outlive L, so one less is asked.
        lease_seconds = self.policy.lease_seconds
        if not self.may_vouch(now, record.primary):
            return replace(record, is_open=False), lease_seconds - 1
        assert self.heartbeat is not None
        age = self._arrival_age(self.heartbeat, now) + lease_seconds
        fresh = replace(record, is_open=True, as_of_us=self.heartbeat.wall_us, heartbeat_age_ms=ceil(age * 1000))
        return fresh, lease_seconds - 1

    def may_vouch(self, now: float, primary: str) -> bool:
        """Whether a record that is written ``now`` and follows ``primary`` may be open: the own heartbeat was written
        there (F101) and is young (F71), also if the write arrives as late as it can (F104)."""
        beat, lease_seconds = self.heartbeat, self.policy.lease_seconds
        return (
            self.policy.is_serving
            and self.target is None
            and beat is not None
            and beat.primary == primary
            and beat.written_at >= self.opens_after
            and now - beat.written_at <= self.policy.heartbeat_age_max_seconds
            and self._arrival_age(beat, now) <= self.policy.heartbeat_age_max_seconds + lease_seconds
        )

    def _arrival_age(self, beat: HeartbeatSeen, now: float) -> float:
        """The largest age that a heartbeat can have when a write of ``now`` arrives: the CAS fails as soon as the
        replaced record has expired, and another invalidator may have given that one a longer lease."""
        return max(now, self.expires_by) - beat.written_at

    def reread(self) -> Procedure[None]:
        """After a lost race: continue only in the same tenure, and only under the same configuration.

        A record that has lapsed and was added again, even in the same life, may lack what this one has published. If
        one of the same tenure does, an older copy of the node's data has come back: all since is sent again.
        """
        read_at = self.clock()
        (reply,) = yield Flow(self.node, (Get(self.record_key, is_bound=True),))
        mine, current = self.joined_record(), find_record(reply, self.node)
        require_topology(current, self.policy, self.node)
        if current is None or current.tenure != mine.tenure:
            raise MembershipLost(
                f"{self.node}: the node record lapsed or its life has ended", hint="it is joined again"
            )
        is_other = is_of_another_configuration if self.is_covered else is_foreign
        if is_other(current, self.policy):
            raise MembershipLost(
                f"{self.node}: an invalidator with other objects or nodes has taken over",
                hint="run all invalidators with the same freshness.toml",
            )
        if not current.progress.contains(mine.progress):
            raise MembershipLost(
                f"{self.node}: an older copy of its data has come back", hint="all since then is sent again"
            )
        self.adopt(current, reply, read_at)

    def store(self, change: Callable[[NodeRecord], NodeRecord]) -> Procedure[None]:
        """Store a change of the record as it is now. Other invalidators may write it at the same time."""
        for _ in range(CAS_ATTEMPTS_MAX):
            if (yield from self.try_store(change(self.joined_record()))):
                return
            yield from self.reread()
        raise MembershipLost(f"{self.node}: lost the race for the node record {CAS_ATTEMPTS_MAX} times")

    def write_resume(self, record: NodeRecord | None = None, *, is_birth: bool = False) -> Procedure[None]:
        """Write the copy of the record that does not expire. Written after the record, so it never claims more.

        The birth of a life and new objects (``record``) are written before the record, so that the old life, or the
        old set of objects, can no longer be revived.
        """
        wanted = record or self.joined_record()
        for _ in range(CAS_ATTEMPTS_MAX):
            if self.resume_version is None:
                added = Add(self.resume_key, wanted.encode(), 0, is_bound=True)
                (reply,) = yield Flow(self.node, (added,))
            else:
                (reply,) = yield Flow(self.node, (Cas(self.resume_key, wanted.encode(), self.resume_version, 0),))
            if isinstance(reply, Stored) and reply.version:
                self.resume_version, self.resume_written_at = reply.version, self.clock()
                return
            if (yield from self._reread_resume(wanted, is_birth=is_birth)):
                return
        raise MembershipLost(f"{self.node}: lost the race for the resume copy {CAS_ATTEMPTS_MAX} times")

    def _reread_resume(self, wanted: NodeRecord, *, is_birth: bool) -> Procedure[bool]:
        """Read the copy that is in the way. Returns True if it serves as well."""
        (held,) = yield Flow(self.node, (Get(self.resume_key, is_bound=True),))
        self.resume_version = held.version if isinstance(held, Item) else None
        other = find_record(held, self.node)
        require_topology(other, self.policy, self.node)
        if self.resume_version is None or other is None:
            if self.resume_version is not None:
                # Foreign bytes; without a version if the backend gives those none that fits.
                yield Flow(self.node, (Delete(self.resume_key, self.resume_version or None),))
                self.resume_version = None
            return False
        if not is_birth and other.tenure != wanted.tenure:
            yield from self.reread()  # raises if the copy is right and we are not
            return False
        is_enough = (
            other.tenure == wanted.tenure
            and other.progress.contains(wanted.progress)
            and other.rings >= wanted.rings
            and all(other.find_coverage(name, each.fingerprint) for name, each in wanted.objects.items())
            and (other.primary, other.topology) == (wanted.primary, wanted.topology)
        )
        if is_enough:
            self.resume_written_at = self.clock()
        return is_enough

    # -- lives ---------------------------------------------------------------------------------------------

    def begin_life(self) -> Procedure[None]:
        """Start a new life: all entries of the node become garbage, and its floor is the primary's head.

        The resume copy is written first: if this process died in between, the old life must not be revived. Then
        the record is added, closed. The head is read after that, so that it covers all events that were streamed
        before the node got its invalidations (a stream can be ahead of what the primary shows).
        """
        nothing = empty_position(self.streamed.flavor)
        life, policy = self.nonce(), self.policy
        newborn = NodeRecord(
            lineage=policy.lineage,
            life=life,
            tenure=self.nonce(),
            is_open=False,
            epoch=0,
            ring=policy.ring,
            as_of_us=0,
            heartbeat_age_ms=0,
            node=self.node,
            stripes=policy.stripes,
            progress=nothing,
            floor=nothing,
            topology=policy.topology,
            starts=dict.fromkeys(policy.rings - {policy.ring}, nothing),
        )
        version = self.version
        self.leave()
        yield from self.write_resume(newborn, is_birth=True)
        ttl_seconds = self.policy.lease_seconds - 1
        if version == 0:
            added = Add(self.record_key, newborn.encode(), ttl_seconds, is_bound=True)
            (reply,) = yield Flow(self.node, (added,))
        else:
            (reply,) = yield Flow(self.node, (Cas(self.record_key, newborn.encode(), version, ttl_seconds),))
        if not isinstance(reply, Stored):
            raise MembershipLost(f"{self.node}: another invalidator is admitting it", hint="it is joined again")
        read_at = self.clock()
        (item,) = yield Flow(self.node, (Get(self.record_key, is_bound=True),))
        current = find_record(item, self.node)
        if current is None or current.life != life:
            raise MembershipLost(f"{self.node}: the node record was replaced during admission")
        head = yield ReadHead()
        start = self.everything(head)
        self.start_from(start)
        self.adopt(current, item, read_at)
        self.opens_after = read_at  # the life before may have acknowledged what neither shows yet (F57)
        objects = {name: Coverage(mark, start) for name, mark in self.policy.objects.items()}
        born = replace(current, epoch=head.epoch, progress=start, floor=start, objects=objects, primary=head.primary)
        if not (yield from self.try_store(born)):
            raise MembershipLost(f"{self.node}: another invalidator is admitting it", hint="it is joined again")
        yield from self.write_resume()


def cover(member: Membership) -> Procedure[None]:
    """Let the record name the objects (F70) and rings of this configuration, and its topology.

    The resume copy is written first. Otherwise an invalidator without an object could revive this life and ignore
    the object's rows, and a third invalidator would find its entries alive; and one of an older topology could
    revive it and open it. A witness gets it first, too: readers may use a record whose write had no answer.
    """
    member.is_covered = False
    current = member.joined_record()
    change = partial(serve, policy=member.policy, altered_by=member.altered_by)
    wanted = change(current)
    if wanted != current:
        yield from member.write_resume(wanted)
        if member.witness is not None:
            tell_publication(member.witness, member.node, wanted, member.witness.now_us())
        yield from member.store(change)
    member.is_covered = True


def is_of_another_configuration(record: NodeRecord, policy: NodePolicy) -> bool:
    """Whether a record speaks of objects or rings that this configuration does not know. They may leave a
    record of a lower topology."""
    return record.topology >= policy.topology and _has_others(record, policy)


def is_foreign(record: NodeRecord, policy: NodePolicy) -> bool:
    """The same of a record that will be covered before progress is published: it may have objects as they were before
    this process saw their key columns altered."""
    objects = {name: each for name, each in record.objects.items() if (name, each.fingerprint) not in policy.altered}
    return record.topology >= policy.topology and _has_others(replace(record, objects=objects), policy)


def _has_others(record: NodeRecord, policy: NodePolicy) -> bool:
    return not record.rings <= policy.rings or any(
        policy.objects.get(name) != coverage.fingerprint for name, coverage in record.objects.items()
    )


def serve(record: NodeRecord, policy: NodePolicy, altered_by: Position | None = None) -> NodeRecord:
    """The record with the objects and rings of this configuration, and no others.

    Each begins with the record's progress: an invalidator that publishes more has read this record, and sends the
    keys of the object and by the ring. A ring that brings the node no key which a ring of the record does not bring
    begins with that ring. An object whose key columns were altered begins with ``altered_by``: rows that were logged
    before have keys of the previous type.
    """
    progress = record.progress
    starts = {ring: _find_start(record, ring, policy) for ring in policy.rings}
    if starts[policy.ring].is_empty:
        del starts[policy.ring]
    altered = {name for name, each in record.objects.items() if (name, each.fingerprint) in policy.altered}
    altered_at = progress if altered_by is None else progress.union(altered_by)
    objects = {
        name: record.find_coverage(name, fingerprint)
        or Coverage(fingerprint, altered_at if name in altered else progress)
        for name, fingerprint in policy.objects.items()
    }
    return replace(
        record,
        ring=policy.ring,
        starts=starts,
        objects=objects,
        is_settling=record.is_settling or _has_others(record, policy),
        topology=policy.topology,
    )


def _find_start(record: NodeRecord, ring: int, policy: NodePolicy) -> Position:
    held = record.find_start([ring])
    if held is None:
        within = [
            each
            for each in record.rings & policy.placements.keys()
            if policy.placements[ring].is_within(policy.placements[each], record.node)
        ]
        held = record.find_start(within)
    return record.progress if held is None else held


def require_topology(record: NodeRecord | None, policy: NodePolicy, node: str) -> None:
    """Raise `MembershipLost` for a record of a later topology: it stays as it is (F102)."""
    if record is not None and record.topology > policy.topology:
        raise MembershipLost(
            f"{node}: its record of {policy.lineage} is of topology {record.topology}, this process has "
            f"topology {policy.topology}",
            hint="load the present freshness.toml; a previous topology is never served again",
        )
