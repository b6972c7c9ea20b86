"""An applier: the memberships of one lineage's nodes, and how they follow the stream together.

Two shapes use it. ``invalidator.loop.shard`` sends the invalidations itself and acknowledges them (`Applier.send`);
``spark.sink.acknowledger`` acknowledges what executors have sent (`Applier.acknowledge`). Everything else is the same
for both: nodes that are missing are joined again after a pause, a raised epoch ends all memberships, the primary must
show what the nodes demand, leases are kept on the strength of own heartbeats.

No method waits for a node that is down: the node leaves, and is joined again later. Methods that speak to nodes or to
the primary are procedures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from freshness.algorithm.absence import Absences
from freshness.algorithm.admission import join
from freshness.algorithm.apply import Batch, acknowledge, apply_batch, renew
from freshness.algorithm.envelope import NodeRecord
from freshness.algorithm.gather import gather
from freshness.algorithm.invalidate import Target
from freshness.algorithm.membership import HeartbeatSeen, Membership, NodePolicy
from freshness.algorithm.refill import LoggedRow
from freshness.algorithm.request import ConfirmSuccession, Head, Procedure, ReadHead, Streamed, Wait
from freshness.algorithm.witness import Witness
from freshness.errors import FreshnessError, HistoryLost
from freshness.position import Position, empty_position
from freshness.stream.source import Heartbeat

log = logging.getLogger(__name__)

RENEW_SECONDS: Final = 0.25
"""How often leases are looked after while nothing else happens."""

RETRY_SECONDS: Final = 1.0
"""Pause between two looks at the history, and before a stream is opened again after a failure."""

HISTORY_CONFIRM_SECONDS: Final = 15.0
"""How long a primary may lack what was streamed from it before its history counts as lost. A transaction is
streamed before the primary shows it, with semi-synchronous replication by up to its time-out (F57). Counted in looks,
`RETRY_SECONDS` apart: a process that was suspended has not looked."""

FindHeartbeat = Callable[[int], float | None]
"""Sequence number of an own heartbeat → when this process began to write it, by its clock."""

HurryHeartbeat = Callable[[float], None]
"""Have the next own heartbeat written at once, unless one was begun since that time, by this process's clock."""

FindPrimary = Callable[[int], str]
"""Sequence number of an own heartbeat → the identity of the server that it was written to."""


def unknown_primary(_: int) -> str:
    """For who has one primary that never changes. No record that follows a named one is opened by such heartbeats."""
    return ""


def no_hurry(_: float) -> None:
    """For who writes no heartbeats, or has no way to bring one forward."""


@dataclass(frozen=True, slots=True)
class Permit:
    """Permission to send one batch to the nodes of a lineage, for processes that do not hold the memberships.

    Both by node, for the nodes that are joined: the stripes to append to, and the tenure of the record.
    """

    targets: Mapping[str, Target]
    tenures: Mapping[str, bytes]

    @classmethod
    def of(cls, joined: Sequence[Membership]) -> Permit:
        """For a batch that other processes send from now on."""
        return cls(
            {each.node: Target.of(each.policy.namespace, each.joined_record()) for each in joined},
            {each.node: each.joined_record().tenure for each in joined},
        )


def create_members(
    nodes: Iterable[str],
    policy: NodePolicy,
    clock: Callable[[], float],
    nonce: Callable[[], bytes],
    nothing: Position,
    witness: Witness | None = None,
) -> dict[str, Membership]:
    """One membership for each node, none of them joined."""
    return {node: Membership(node, policy, clock, nonce, nothing, witness=witness) for node in nodes}


@dataclass(slots=True, kw_only=True)
class Applier:
    """See the module. ``streamed``: everything that the open stream started from or has delivered, in the history of
    ``streamed_epoch``. ``epoch``: the highest of the nodes' records.

    ``is_sender`` is False where other processes send. The stream is not opened again for a node that is behind it
    then: the node begins a new life, and a node that failed once is tried again at once, before it falls behind.
    ``passed``: how far the stream was when the latest own heartbeat came back (see `read_stream`). ``problems``: by
    node, why it is not joined. ``is_succeeded``: heartbeats of this process go to another primary than the records
    follow.
    """

    members: Mapping[str, Membership]
    instance: str
    clock: Callable[[], float]
    find_heartbeat: FindHeartbeat
    streamed: Position
    find_primary: FindPrimary = unknown_primary
    hurry: HurryHeartbeat = no_hurry
    is_sender: bool = True
    epoch: int = 0
    streamed_epoch: int = 0
    lost_looks: int = 0
    is_history_checked: bool = False
    is_succeeded: bool = False
    history_checked_at: float = float("-inf")
    passed: Streamed | None = None
    problems: dict[str, FreshnessError | str] = field(default_factory=dict)
    absences: Absences = field(init=False)
    _ended: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.absences = Absences(self.clock, self.is_sender, self.problems)

    # -- membership ----------------------------------------------------------------------------------------

    @property
    def joined(self) -> list[Membership]:
        return [member for member in self.members.values() if member.is_joined]

    def join_missing(self) -> Procedure[None]:
        """Join every node that is not joined and whose pause is over, those of `end_lives` under new lives."""
        missing = [
            member for member in self.members.values() if not member.is_joined and self.absences.is_over(member.node)
        ]
        if not missing:
            return
        yield from self._join(missing)
        if not self.is_sender:
            behind = [member for member in missing if _is_behind(member, self.streamed, self.streamed_epoch)]
            for member in behind:
                self._end_life(member, f"it has {member.applied}, the stream has passed {self.streamed}")
            yield from self._join(behind)
        for member in self.joined:
            if member.joined_record().epoch < self.epoch:
                member.leave()  # the epoch was raised; it begins a new life when it is joined next

    def _join(self, members: Sequence[Membership]) -> Procedure[None]:
        results = yield from gather(
            [
                join(member, self.streamed, epoch=self.streamed_epoch, is_fresh=member.node in self._ended)
                for member in members
            ]
        )
        for member, result in zip(members, results, strict=True):
            if isinstance(result, FreshnessError):
                self.absences.begin(member, result)
            else:
                self._note_joined(member)

    def _note_joined(self, member: Membership) -> None:
        self.absences.end(member.node)
        self._ended.discard(member.node)
        self.is_history_checked = False
        record = member.joined_record()
        self.epoch = max(self.epoch, record.epoch)
        self.hurry(member.opens_after)
        log.info("node %s joined: life %s, progress %s", member.node, record.life.hex(), record.progress)

    def start_position(self) -> Position | None:
        """From where the stream must be opened so that no joined node misses an event; None: no node is joined."""
        start: Position | None = None
        for member in self.joined:
            start = member.applied if start is None else start.intersection(member.applied)
        return start

    @property
    def needs_rewind(self) -> bool:
        """Whether a joined node has acknowledged less than has been streamed, or is of another epoch; or whether the
        history must be checked again."""
        return (
            self.epoch > self.streamed_epoch
            or self.is_succeeded
            or any(not member.applied.contains(self.streamed) for member in self.joined)
        )

    def leave_all(self) -> None:
        """End all memberships, so that the next join reads the record of every node again."""
        for member in self.members.values():
            member.leave()

    def end_lives(self) -> None:
        """All nodes begin new lives when they are joined next: nobody can vouch for what they hold.

        Events that were streamed before belong to the lost history and must not be in the new floors.
        """
        self.leave_all()
        self.streamed, self.passed = empty_position(self.streamed.flavor), None
        self.lost_looks = 0
        self._ended.update(self.members)

    def end_lives_behind(self) -> None:
        """The log that the nodes furthest behind would need is gone: those begin new lives, the others go on.

        If all are equally far, all begin new lives (F15).
        """
        top = self.streamed
        for member in self.joined:
            top = top.union(member.applied)
        behind = [member for member in self.joined if not member.applied.contains(top)] or self.joined
        for member in behind:
            self._end_life(member, f"the log since {member.applied} is gone")

    def renew(self) -> Procedure[None]:
        """Keep the leases of joined nodes, as long as the own heartbeat is young."""
        members = self.joined
        results = yield from gather([renew(member) for member in members])
        self.absences.begin_failed(members, results)

    def pause(self) -> Procedure[None]:
        """Let `RETRY_SECONDS` pass, and renew the leases in between: the shortest lasts hardly longer than that."""
        for _ in range(round(RETRY_SECONDS / RENEW_SECONDS)):
            yield Wait(RENEW_SECONDS)
            yield from self.renew()

    def finish(self) -> Procedure[None]:
        """Acknowledge all that was sent, and leave the resume copies up to date: the next start repeats nothing."""
        while any(member.held for member in self.joined):
            yield Wait(RENEW_SECONDS)
            yield from self.renew()
        members = self.joined
        results = yield from gather([member.write_resume() for member in members])
        self.absences.begin_failed(members, results)

    def _end_life(self, member: Membership, why: str) -> None:
        log.error("node %s begins a new life: %s", member.node, why)
        member.leave()
        self._ended.add(member.node)

    # -- history -------------------------------------------------------------------------------------------

    def check_history(self) -> Procedure[None]:
        """Raise `HistoryLost` if the primary does not show all that a joined node has acknowledged, demands of a
        read, or waits for (ADR 0018).

        More than the stream starts from: a node may hold values from a future that a failover took back (F28), and a
        floor that was raised before such an event was acknowledged would refuse every fill. Also if the primary is
        another one than a record follows: readers may have seen what no record names (F101).
        """
        checked_at = self.clock()
        head = yield ReadHead()
        for member in self.joined:
            record = member.joined_record()
            starts = [each.start for each in record.objects.values()]
            wanted = member.applied.union_all([record.floor, *record.table_floors.values(), *starts])
            if not head.position.contains(wanted if member.target is None else wanted.union(member.target)):
                raise HistoryLost(
                    f"the primary has never executed all that node {member.node} has acknowledged, demands or waits "
                    "for",
                    hint="a failover lost transactions (F28, F29): if that stays so, the epoch must be raised",
                )
        yield from self._follow_primary(head)
        self.is_history_checked, self.is_succeeded, self.history_checked_at = True, False, checked_at

    def _follow_primary(self, head: Head) -> Procedure[None]:
        """Let the records follow the primary of ``head``. Raise `HistoryLost` where values may be cached that it
        lacks."""
        others = [member for member in self.joined if member.joined_record().primary != head.primary]
        for previous in sorted({member.joined_record().primary for member in others} - {""}):
            if not (yield ConfirmSuccession(previous, head.primary)):
                raise HistoryLost(
                    f"the primary was {previous} and is {head.primary}: readers may have seen commits that it lacks",
                    hint="list the previous primary as replica, or state lossless_failover, to keep the cache (F101)",
                )
            log.info("the primary was %s and is %s; nothing is lost", previous, head.primary)

        def change(record: NodeRecord) -> NodeRecord:
            return replace(record, primary=head.primary)

        results = yield from gather([member.store(change) for member in others])
        self.absences.begin_failed(others, results)

    def confirm_loss(self) -> bool:
        """Count a look that found the history lost. True: it has been so for `HISTORY_CONFIRM_SECONDS` of looks."""
        self.lost_looks += 1
        return (self.lost_looks - 1) * RETRY_SECONDS >= HISTORY_CONFIRM_SECONDS

    # -- the stream ----------------------------------------------------------------------------------------

    def opened(self, start: Position) -> None:
        """The stream was opened at ``start``, in a history that holds what the nodes demand."""
        self.streamed, self.streamed_epoch, self.lost_looks, self.passed = start, self.epoch, 0, None

    def read_stream(self, _: float) -> Streamed | None:
        """The answer to `ReadStream`: for procedures that run beside this applier, from any thread."""
        return self.passed

    def send(
        self,
        keys: Mapping[str, Mapping[bytes, Position]],
        raised: Mapping[str, Position],
        streamed: Position,
        beats: Sequence[Heartbeat],
        rows: Mapping[bytes, LoggedRow] | None = None,
    ) -> Procedure[None]:
        """Send a batch to every joined node and acknowledge it there. A node that fails leaves.

        ``keys``: by node. ``streamed``: everything up to the end of the batch. ``rows``: see `Batch`, of all nodes.
        """
        assert self.is_sender, "other processes send"
        before, self.streamed = self.streamed, streamed
        heartbeat = self._take_heartbeat(beats)
        members = self.joined
        results = yield from gather(
            [
                apply_batch(
                    member,
                    Batch(
                        keys[member.node], raised, self.find_before(member, before), streamed, heartbeat, rows or {}
                    ),
                )
                for member in members
            ]
        )
        self.absences.begin_failed(members, results)
        self._note_beats(beats, heartbeat)

    def find_before(self, _: Membership, before: Position) -> Position:
        """The start of a batch for this node; ``before`` is its start in the stream. Events behind that are left out
        of the batch if the node has acknowledged them."""
        return before

    def acknowledge(
        self,
        raised: Mapping[str, Position],
        before: Position,
        streamed: Position,
        beats: Sequence[Heartbeat],
        permit: Permit,
        failed: Mapping[str, str],
    ) -> Procedure[None]:
        """Acknowledge a batch that other processes have sent with ``permit``.

        Only on nodes that were joined throughout and took all of it; the others leave, and `join_missing` finds which
        of them are behind. ``failed``: nodes that did not take all, and why.
        """
        assert not self.is_sender, "this process sends, and knows what it sent"
        # Only this batch's history: a later floor must not hold what was streamed before the epoch was raised.
        self.streamed, self.streamed_epoch = streamed, self.epoch
        heartbeat = self._take_heartbeat(beats)
        ready = []
        for member in self.joined:
            why = failed.get(member.node) or _find_gap(member, permit, before)
            if why:
                self.absences.begin(member, why)
            else:
                ready.append(member)
        batch = Batch({}, raised, before, streamed, heartbeat)
        results = yield from gather([acknowledge(member, batch) for member in ready])
        self.absences.begin_failed(ready, results)
        # At once: after a restart the stream goes on behind this batch, and a copy that lacks it cannot be revived.
        yield from self.finish()
        self._note_beats(beats, heartbeat)

    def _take_heartbeat(self, beats: Sequence[Heartbeat]) -> HeartbeatSeen | None:
        """See `find_own_heartbeat`. All that was streamed up to this batch is noted with it."""
        heartbeat = self.find_own_heartbeat(beats)
        if heartbeat is not None:
            self.passed = Streamed(self.streamed, self.streamed_epoch, heartbeat.written_at, heartbeat.primary)
        return heartbeat

    def find_own_heartbeat(self, beats: Sequence[Heartbeat]) -> HeartbeatSeen | None:
        """The last of this process's own heartbeats; those of others say nothing about this stream (F71)."""
        seen, last = None, -1
        for beat in beats:
            if beat.instance == self.instance and beat.sequence > last:
                written_at = self.find_heartbeat(beat.sequence)
                if written_at is not None:
                    seen, last = (
                        HeartbeatSeen(written_at, beat.min_us, self.find_primary(beat.sequence)),
                        beat.sequence,
                    )
        return seen

    def _note_beats(self, beats: Sequence[Heartbeat], heartbeat: HeartbeatSeen | None) -> None:
        """Join all nodes again after the epoch was raised. Check the history again if own heartbeats go to another
        primary than the records follow: a stream can outlast a failover, as that of a replica does."""
        if any(beat.epoch > self.epoch for beat in beats):
            log.warning("the epoch was raised: history was lost; all nodes begin new lives")
            self.leave_all()
        if heartbeat is None or heartbeat.written_at < self.history_checked_at:
            return
        if any(member.joined_record().primary != heartbeat.primary for member in self.joined):
            log.warning("heartbeats go to another primary, %s: the history is checked again", heartbeat.primary)
            self.is_succeeded, self.is_history_checked = True, False


def _is_behind(member: Membership, streamed: Position, epoch: int) -> bool:
    """Whether a joined node has not acknowledged all that the stream has delivered, in the same history."""
    return member.is_joined and member.joined_record().epoch == epoch and not member.applied.contains(streamed)


def _find_gap(member: Membership, permit: Permit, before: Position) -> str:
    """Why a batch that others have sent cannot be acknowledged; "" if it can."""
    if permit.tenures.get(member.node) != member.joined_record().tenure:
        return "it was not joined all the while"
    if not member.applied.contains(before):
        return "the stream begins after what it has acknowledged"
    return ""
