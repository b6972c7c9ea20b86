"""The invariants (docs/invariants.md), checked at every step against what the world alone knows."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from freshness.algorithm.apply import INSPECT_SECONDS
from freshness.algorithm.envelope import STUB, Filled, NodeRecord, Tombstone, record_key
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.read import Read
from freshness.algorithm.request import Add, Cas, Delete, Get, InspectStorage, Item, Reply, Request, Stored
from freshness.algorithm.rule import ReadOutcome
from freshness.errors import FormatError
from freshness.keys.cachekey import tombstone_key
from freshness.position import MysqlGtidSet, Position, empty_position
from tests.simulation.database import Commit, Shard

if TYPE_CHECKING:
    from tests.simulation.world import World

NOTHING: Final = MysqlGtidSet()
"""Contains no commit of any flavor."""

NEVER_SECONDS: Final = 1e9
CLOCK_SLACK: Final = 0.99
"""No clock of a world runs faster by more (`Options.clock_rate_error`)."""

_WRITES: Final = (Add, Cas)

# What bytes say does not change: each is decoded once.
_entry_of = lru_cache(2048)(Filled.decode)
_record_of = lru_cache(2048)(NodeRecord.decode)


@lru_cache(2048)
def _tombstone_of(data: bytes) -> Tombstone | None:
    try:
        return Tombstone.decode(data)
    except FormatError:
        return None


@lru_cache(2048)
def _numbers_of(value: bytes) -> tuple[int, ...]:
    numbers = ast.literal_eval(value.decode())
    assert isinstance(numbers, tuple)
    return numbers


class Violation(AssertionError):
    """An invariant does not hold. ``invariant``: its number."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


@dataclass(slots=True)
class LostTombstone:
    """Something that the node lost and counted. ``owed``: what the floor must hold, or the life end for it;
    ``acknowledged``: the part of it that was acknowledged when it was lost, so that nobody need send it again."""

    at: float
    key: bytes
    owed: Position
    acknowledged: Position


@dataclass(slots=True)
class Life:
    """What was published in one life of one node, for one lineage.

    ``scanned``: how much of the log is known to be acknowledged without a gap. ``is_damaged``: it lost what it must
    not, and nobody may have noticed yet. ``lost``: tombstones that it lost and counted.
    """

    acknowledged: Position = NOTHING
    last: NodeRecord | None = None
    open_floor: Position = NOTHING
    open_progress: Position = NOTHING
    unfloored: list[Commit] = field(default_factory=list)
    scanned: int = 0
    is_damaged: bool = False
    ended_at: float | None = None
    lost: list[LostTombstone] = field(default_factory=list)


@dataclass(slots=True)
class Seen:
    """What a reader's last `Get` of an entry returned, and what had been acknowledged then.

    ``at``: when the reader asked; it may have been paused before the node answered.
    """

    at: float
    data: bytes
    acknowledged: Mapping[tuple[str, bytes], Position]


class Checker:
    """Told of every request that a node carries out, every finished read, every fault that excuses something."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lives: dict[tuple[str, str, bytes], Life] = {}
        # By node; replaced and never changed, as what readers have seen refers to it.
        self._acknowledged: dict[str, dict[tuple[str, bytes], Position]] = {n: {} for n in world.stores}
        self._current: dict[tuple[str, str], Life] = {}
        self._seen: dict[tuple[str, bytes], Seen] = {}
        self._removed: dict[tuple[str, bytes, str], Position] = {}
        self._lost_epochs: dict[str, int] = {}
        self._lookups = {lookup.item: lookup for lookup in world.lookups()}
        self._places = {
            placement.ring_version: {item: placement.node_for(item) for item in self._lookups}
            for placement in world.placements
        }
        self._shards = {shard.lineage: shard for shard in world.shards}
        self._affected: dict[tuple[str, int], tuple[Lookup, ...]] = {}
        self._check_again_at = 0.0
        self._inspected: dict[tuple[str, str], float] = {}
        self._records = {record_key("sim", shard.lineage): shard for shard in world.shards}
        self.outcomes: Counter[ReadOutcome] = Counter()
        self.served: set[bytes] = set()

    # -- what the world tells -----------------------------------------------------------------------------

    def executed(self, who: str, node: str, request: Request, reply: Reply) -> None:
        if isinstance(request, Get):
            if request.key in self._lookups and isinstance(reply, Item):
                began = self._world.step_began(who)
                self._seen[who, request.key] = Seen(began, reply.value, self._acknowledged[node])
        elif isinstance(request, Delete):
            if request.key not in self._lookups:
                self.node_changed()
            elif request.version is None:
                self._note_removal(node, request.key)
        elif isinstance(request, _WRITES) and isinstance(reply, Stored):
            lookup = self._lookups.get(request.key)
            if lookup is None:
                self.node_changed()
                self._note_sent_again(node, request.key)
                shard = self._records.get(request.key)
                if shard is not None:
                    self._check_record(who, node, shard, _record_of(request.value))
            elif request.value != STUB:
                self._check_entry(node, lookup, request.value)
        elif isinstance(request, InspectStorage):
            self._inspected[who, node] = self._world.now

    def read_done(self, who: str, lookups: Sequence[Lookup], reads: Sequence[Read]) -> None:
        for lookup, read in zip(lookups, reads, strict=True):
            self.outcomes[read.outcome] += 1
            if read.outcome is ReadOutcome.HIT:
                self.served.add(lookup.item)
                self._check_hit(who, lookup, self._seen[who, lookup.item])

    def stepped(self) -> None:
        """I2 holds until a record or tombstone is written, dropped, or expires; then it is looked after again."""
        if self._world.now >= self._check_again_at:
            self._check_protection()

    def node_changed(self) -> None:
        """A record or a tombstone may be another or gone."""
        self._check_again_at = 0.0

    def node_emptied(self, node: str) -> None:
        """Everything on the node is gone, its lives are over."""
        for key in [key for key in self._removed if key[0] == node]:
            del self._removed[key]
        self.node_damaged(node)

    def node_damaged(self, node: str) -> None:
        """The node lost what it must not. Until somebody notices, nobody can know."""
        self.node_changed()
        for key, life in self._lives.items():
            if key[0] == node:
                life.is_damaged = True

    def tombstone_lost(self, node: str, key: bytes, data: bytes) -> None:
        """As above, but the node counts it (F67): it must be noticed with the next inspection."""
        self.node_changed()
        tombstone = _tombstone_of(data)
        for (where, lineage, _), life in self._lives.items():
            if where != node:
                continue
            life.is_damaged = True
            if tombstone is None:
                continue
            for (name, _), position in tombstone.positions.items():
                if name == lineage:
                    acknowledged = _intersect(position, life.acknowledged)
                    life.lost.append(LostTombstone(self._world.now, key, position, acknowledged))

    def _note_sent_again(self, node: str, key: bytes) -> None:
        """What was neither acknowledged nor in the floor when its tombstone was lost, and stands again before it is
        acknowledged, is owed no longer."""
        for (where, lineage, _), life in self._lives.items():
            if where != node or not life.lost:
                continue
            held = self._world.stores[node].peek(key)
            tombstone = None if held is None else _tombstone_of(held.value)
            standing = tombstone.positions.items() if tombstone is not None else ()
            for lost in life.lost:
                if lost.key != key or not lost.acknowledged.contains(
                    _intersect(lost.owed, life.acknowledged)
                ):
                    continue
                protected = (
                    lost.acknowledged if life.last is None else lost.acknowledged.union(life.last.floor)
                )
                for (name, _), position in standing:
                    protected = protected.union(position) if name == lineage else protected
                if protected.contains(lost.owed):
                    lost.owed = lost.acknowledged

    def history_lost(self, shard: Shard) -> None:
        """Commits are gone for good: in this epoch what was cached from them has no truth to be compared with."""
        self._lost_epochs[shard.lineage] = shard.epoch
        for key, life in self._lives.items():
            if key[1] == shard.lineage:
                life.is_damaged = True

    def _is_excused(self, lineage: str, life: Life | None) -> bool:
        if life is None or life.last is None or life.is_damaged:
            return True
        return life.last.epoch <= self._lost_epochs.get(lineage, -1)

    # -- I1, I7 --------------------------------------------------------------------------------------------

    def _check_hit(self, who: str, lookup: Lookup, seen: Seen) -> None:
        options = self._world.options
        oldest = seen.at - options.max_staleness_seconds - 1
        if self._world.reshard is not None:
            self._check_hit_elsewhere(who, lookup, seen, oldest)
        for shard, table, version, name, _ in self._versions(lookup, seen.data):
            life = self._lives.get((lookup.node, shard.lineage, name))
            trusted_since = seen.at - options.node_refresh_seconds * (1 + 2 * options.clock_rate_error)
            if life is not None and life.ended_at is not None and life.ended_at < trusted_since:
                raise Violation(
                    "I1",
                    f"{who} got {lookup.item.decode()} of a life of {lookup.node} that had ended "
                    f"{seen.at - life.ended_at:.1f} s before",
                )
            if self._is_excused(shard.lineage, life):
                continue
            acknowledged = seen.acknowledged.get((shard.lineage, name), NOTHING)
            row = table, lookup.values[0]
            for commit in reversed(shard.by_row.get(row, ())):
                if commit.version(row) <= version:
                    self._check_exists(lookup, shard, table, version, commit)
                    break
                if acknowledged.contains(commit.position):
                    raise Violation(
                        "I1",
                        f"{who} got {lookup.item.decode()} with {table} at version {version} from {lookup.node} "
                        f"after the invalidation by commit {commit.number} was acknowledged",
                    )
                if commit.at < oldest:
                    raise Violation(
                        "I7",
                        f"{who} got {lookup.item.decode()} with {table} at version {version}, which commit "
                        f"{commit.number} replaced {seen.at - commit.at:.1f} s before",
                    )

    def _check_hit_elsewhere(self, who: str, lookup: Lookup, seen: Seen, oldest: float) -> None:
        """In a reshard: a row has one history, over all the shards that it was on."""
        versions: dict[str, int] = {}
        for _, table, version, _, _ in self._versions(lookup, seen.data):
            versions[table] = max(version, versions.get(table, 0))
        for table, version in versions.items():
            row = table, lookup.values[0]
            for shard in self._world.shards:
                if shard.lineage in lookup.policy.lineages:
                    continue
                for commit in shard.by_row.get(row, ()):
                    if commit.version(row) <= version:
                        continue
                    is_acknowledged = any(
                        lineage == shard.lineage and position.contains(commit.position)
                        for (lineage, _), position in seen.acknowledged.items()
                    )
                    if is_acknowledged or commit.at < oldest:
                        of = " and ".join(lookup.policy.lineages)
                        raise Violation(
                            "I1" if is_acknowledged else "I7",
                            f"{who} got {lookup.item.decode()} of {of} with {table} at version {version}, which "
                            f"commit {commit.number} of {shard.lineage} replaced",
                        )

    def _check_exists(self, lookup: Lookup, shard: Shard, table: str, version: int, commit: Commit) -> None:
        if commit.version((table, lookup.values[0])) < version:
            raise Violation(
                "I1",
                f"{lookup.item.decode()} has {table} at version {version}, which {shard.lineage} lost in a failover",
            )

    def _check_entry(self, node: str, lookup: Lookup, data: bytes) -> None:
        """A fill: in the life it names it must not lack anything acknowledged."""
        for shard, table, version, name, position in self._versions(lookup, data):
            life = self._lives.get((node, shard.lineage, name))
            if life is None or self._is_excused(shard.lineage, life):
                continue
            floor = life.last.table_floors.get(table) if life.last is not None else None
            if floor is not None and not position.contains(floor):
                continue  # it is stored, but no hit
            row = table, lookup.values[0]
            for commit in reversed(shard.by_row.get(row, ())):
                if commit.version(row) <= version:
                    break
                if life.acknowledged.contains(commit.position):
                    raise Violation(
                        "I1",
                        f"{lookup.item.decode()} was filled on {node} with {table} at version {version} after the "
                        f"invalidation by commit {commit.number} was acknowledged",
                    )

    def _versions(self, lookup: Lookup, data: bytes) -> Iterator[tuple[Shard, str, int, bytes, Position]]:
        """Of each row in an entry: (shard, table, version, life, position)."""
        entry = _entry_of(data)
        assert entry.value is not None
        numbers = iter(_numbers_of(entry.value))
        stamps = {stamp.lineage: stamp for stamp in entry.stamps}
        # In a reshard an entry may be of other shards than those of this lookup.
        for lineage in stamps if self._world.reshard is not None else lookup.policy.lineages:
            stamp = stamps[lineage]
            for table in lookup.policy.tables:
                yield self._shards[lineage], table, next(numbers), stamp.life, stamp.position

    # -- I2 ------------------------------------------------------------------------------------------------

    def _check_protection(self) -> None:
        """Every acknowledged event: its tombstone is alive, or a floor has it, or the record is not open."""
        seconds_left = [NEVER_SECONDS]
        for (node, lineage, name), life in self._lives.items():
            if not life.unfloored or self._is_excused(lineage, life):
                continue
            item = self._world.stores[node].peek(record_key("sim", lineage))
            if item is None:
                continue
            record = _record_of(item.value)
            if record.life != name or not record.is_open:
                continue
            life.unfloored = [c for c in life.unfloored if not record.floor.contains(c.position)]
            for commit in life.unfloored:
                seconds_left += self._check_commit_protection(node, lineage, record, commit)
        # A node counts whole seconds: after the TTL that it names less one, the item may be gone. Clocks differ.
        self._check_again_at = self._world.now + max(0.0, min(seconds_left) - 1) * CLOCK_SLACK

    def _check_commit_protection(
        self, node: str, lineage: str, record: NodeRecord, commit: Commit
    ) -> Iterator[float]:
        """How long the tombstones live on which this protection rests."""
        store = self._world.stores[node]
        for lookup in self._exposed(node, lineage, record, commit):
            held = store.peek(tombstone_key(lookup.item))
            tombstone = None if held is None else _tombstone_of(held.value)
            if held is None or tombstone is None or not _holds(tombstone, lineage, commit.position):
                raise Violation(
                    "I2",
                    f"{node}: commit {commit.number} of {lineage} is acknowledged, and neither a tombstone of "
                    f"{lookup.item.decode()} nor a floor holds it",
                )
            yield NEVER_SECONDS if held.ttl_seconds < 0 else held.ttl_seconds

    def _exposed(self, node: str, lineage: str, record: NodeRecord, commit: Commit) -> Iterator[Lookup]:
        """The keys that a commit changed and neither a table floor nor the object's start protects."""
        affected = self._find_affected(lineage, commit)
        if not affected:
            return
        places = self._places.get(record.ring, {})
        for lookup in affected:
            policy = lookup.policy
            if places.get(lookup.item) != node:
                continue
            coverage = record.objects.get(policy.name)
            if coverage is None or coverage.start.contains(commit.position):
                continue
            floors = (record.table_floors.get(table) for table in policy.tables)
            if any(floor is not None and floor.contains(commit.position) for floor in floors):
                continue
            yield lookup

    def _find_affected(self, lineage: str, commit: Commit) -> tuple[Lookup, ...]:
        """The keys that a commit changed, wherever they are."""
        known = self._affected.get((lineage, commit.number))
        if known is None:
            known = self._affected[lineage, commit.number] = tuple(
                lookup
                for lookup in self._lookups.values()
                if lineage in lookup.policy.lineages
                and any((table, lookup.values[0]) in commit.rows for table in lookup.policy.tables)
            )
        return known

    # -- I3, I4 --------------------------------------------------------------------------------------------

    def _check_record(self, who: str, node: str, shard: Shard, record: NodeRecord) -> None:
        life = self._lives.setdefault((node, shard.lineage, record.life), Life(shard.nothing))
        before, life.last = life.last, record
        former, self._current[node, shard.lineage] = self._current.get((node, shard.lineage), life), life
        if former is not life:
            former.ended_at, life.ended_at = self._world.now, None
        if self._is_excused(shard.lineage, life):
            self._check_end(who, node, shard, life, record)
            return
        new = self._newly_acknowledged(shard, life, record)
        for commit in new:
            self._check_acknowledged(node, shard.lineage, record, commit)
        life.acknowledged = life.acknowledged.union(record.progress)
        self._acknowledged[node] = {
            **self._acknowledged[node],
            (shard.lineage, record.life): life.acknowledged,
        }
        life.unfloored += [
            commit
            for commit in new
            if self._find_affected(shard.lineage, commit) and not record.floor.contains(commit.position)
        ]
        if record.is_open:
            self._check_growth(node, shard, life, before, record)
            life.open_floor, life.open_progress = record.floor, record.progress

    def _check_growth(
        self, node: str, shard: Shard, life: Life, before: NodeRecord | None, record: NodeRecord
    ) -> None:
        # A floor may run ahead of progress (head mode). After a lapse, what nobody has acknowledged may be missing:
        # it is in no progress, and the stream brings it again.
        kept = (
            life.open_floor if life.open_floor.is_empty else life.open_floor.intersection(life.acknowledged)
        )
        for what, former, present in (
            ("floor", kept, record.floor),
            ("progress", life.open_progress, record.progress),
        ):
            if not former.is_empty and not present.contains(former):
                raise Violation(
                    "I3", f"{node}: the {what} of {shard.lineage} shrank from {former} to {present}"
                )
        for table, floor in (before.table_floors if before is not None else {}).items():
            if not record.table_floors.get(table, NOTHING).contains(floor):
                raise Violation("I3", f"{node}: the floor of table {table} shrank")

    def _newly_acknowledged(self, shard: Shard, life: Life, record: NodeRecord) -> list[Commit]:
        log = shard.log
        while life.scanned < len(log) and life.acknowledged.contains(log[life.scanned].position):
            life.scanned += 1
        return [
            commit
            for commit in log[life.scanned :]
            if record.progress.contains(commit.position) and not life.acknowledged.contains(commit.position)
        ]

    def _check_end(self, who: str, node: str, shard: Shard, life: Life, record: NodeRecord) -> None:
        """F67: a life in which a tombstone was lost may not be published as open after the next inspection, unless
        the floor holds what was lost. Who has inspected the node since must know. What a failover took back is owed
        to nobody: no reader can lack it."""
        if not record.is_open:
            return
        now, inspected_at = self._world.now, self._inspected.get((who, node), 0.0)
        grace = INSPECT_SECONDS + self._world.options.lease_seconds + 1
        for lost in life.lost:
            owed = shard.nothing.union_all(
                [commit.position for commit in shard.log if lost.owed.contains(commit.position)]
            )
            if not record.floor.contains(owed) and (inspected_at > lost.at or now > lost.at + grace):
                raise Violation("I2", f"{node} lost a tombstone {now - lost.at:.1f} s ago and goes on")

    def _check_acknowledged(self, node: str, lineage: str, record: NodeRecord, commit: Commit) -> None:
        """I4: whatever progress names was carried out on this node, or is in the floor."""
        if record.floor.contains(commit.position):
            return
        for lookup in self._exposed(node, lineage, record, commit):
            removed = self._removed.get((node, lookup.item, lineage), NOTHING)
            if not removed.contains(commit.position):
                raise Violation(
                    "I4",
                    f"{node}: progress names commit {commit.number} of {lineage}, but {lookup.item.decode()} was not "
                    "removed under its tombstone",
                )

    def _note_removal(self, node: str, item: bytes) -> None:
        held = self._world.stores[node].peek(tombstone_key(item))
        tombstone = None if held is None else _tombstone_of(held.value)
        if tombstone is None:
            return
        for (lineage, _), position in tombstone.positions.items():
            known = self._removed.get((node, item, lineage))
            self._removed[node, item, lineage] = position if known is None else known.union(position)


def _intersect(position: Position, acknowledged: Position) -> Position:
    """What both hold; `NOTHING` has a flavor of its own."""
    return empty_position(position.flavor) if acknowledged.is_empty else position.intersection(acknowledged)


def _holds(tombstone: Tombstone, lineage: str, position: Position) -> bool:
    return any(held.contains(position) for (name, _), held in tombstone.positions.items() if name == lineage)
