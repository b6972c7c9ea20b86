"""The invariants (docs/algorithm.md), checked at every step against what the world alone knows."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Final

from freshness.algorithm.envelope import (
    STUB,
    Filled,
    NodeRecord,
    Stamp,
    Stripe,
    find_stripe,
    record_key,
    stripe_key,
    stripe_number,
)
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.request import Add, Append, Cas, Delete, Get, Item, Reply, Request, Stored
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.state import Read
from freshness.position import MysqlGtidSet, Position
from tests.simulation.database import Commit, Shard
from tests.simulation.history import STRIPE_HEAD
from tests.simulation.options import STRIPES, Options

if TYPE_CHECKING:
    from tests.simulation.world import World

NOTHING: Final = MysqlGtidSet()
"""Contains no commit of any flavor."""

_WRITES: Final = (Add, Cas)

# What bytes say does not change: each is decoded once.
_entry_of = lru_cache(2048)(Filled.decode)
_record_of = lru_cache(2048)(NodeRecord.decode)


@lru_cache(2048)
def _chunk_of(data: bytes) -> Stripe:
    return Stripe.decode(STRIPE_HEAD + data)


@lru_cache(2048)
def numbers_of(value: bytes) -> tuple[int, ...]:
    numbers = ast.literal_eval(value.decode())
    assert isinstance(numbers, tuple)
    return numbers


class Violation(AssertionError):
    """An invariant does not hold. ``invariant``: its number."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


@dataclass(slots=True)
class Life:
    """What was published in one life of one node, for one lineage.

    ``scanned``: the length of the log that is known to be acknowledged without a gap. ``is_excused``: a failover lost
    its changes. ``lost_at``: the time of that, if the life had followed the previous primary, ``lost_with``; some
    time later nobody may vouch for it any more. ``is_accepted``: it goes on under another primary all the same.
    ``is_over``: the node has an earlier memory, for which no record of this life may vouch.
    ``joined``: of each ring and object that joined a record, all that had been acknowledged without it. A record that
    was revived from an older copy joins it with less, and the rest is sent again before it opens.
    """

    acknowledged: Position = NOTHING
    last: NodeRecord | None = None
    open_progress: Position = NOTHING
    scanned: int = 0
    is_excused: bool = False
    lost_at: float = float("inf")
    lost_with: str = ""
    is_accepted: bool = False
    is_over: bool = False
    ended_at: float | None = None
    joined: dict[int | str, Position] = field(default_factory=dict)

    def join(self, record: NodeRecord) -> None:
        """``record`` is written."""
        if self.last is None:
            return
        starts: dict[int | str, Position | None] = {
            ring: record.find_start([ring]) for ring in record.rings - self.last.rings
        }
        for name in record.objects.keys() - self.last.objects.keys():
            starts[name] = record.objects[name].start
        self.joined |= {name: self.acknowledged for name, start in starts.items() if start == record.progress}

    def is_untold(self, name: int | str, record: NodeRecord, commit: Commit) -> bool:
        """It was acknowledged before the ring or the object came, and has not been sent again."""
        return not record.progress.contains(commit.position) and self.joined.get(name, NOTHING).contains(
            commit.position
        )


@dataclass(slots=True)
class Seen:
    """What a reader's last `Get` of an entry returned, and what had been acknowledged then.

    ``at``: when the node answered.
    """

    at: float
    data: bytes
    acknowledged: Mapping[tuple[str, bytes], Position]


def _staleness_max(options: Options, *, is_clock_struck: bool) -> float:
    """I7. If the clock of a node fails, the readers' own clocks bound the age of a hit: the wall clock at which the
    record is read, plus the allowed skew and the actual one."""
    skews = 2 * options.clock_skew_seconds + options.node_refresh_seconds if is_clock_struck else 0.0
    return options.max_staleness_seconds * (1 + 2 * options.clock_rate_error) + skews


class Checker:
    """Told of every request that a node carries out, every finished read, every fault that excuses something."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lives: dict[tuple[str, str, bytes], Life] = {}
        # By node; replaced and never changed, as what readers have seen refers to it.
        self._acknowledged: dict[str, dict[tuple[str, bytes], Position]] = {n: {} for n in world.stores}
        self._current: dict[tuple[str, str], Life] = {}
        self._seen: dict[tuple[str, bytes], Seen] = {}
        # By sender, node, stripe and life: what it appended there, be the stripe there or not.
        self._struck: dict[tuple[str, str, bytes, bytes], Position] = {}
        self._strikers: set[str] = set()
        # By node, item, lineage and life: what stood in the stripe, or found none, before the item was removed.
        self._removed: dict[tuple[str, bytes, str, bytes], Position] = {}
        self._lost_epochs: dict[str, int] = {}
        self._named = {lookup.item for lookup in world.lookups()}
        # Items that no row names are in no log: they must never be filled.
        lookups = (*world.spelled_lookups(), *world.lookups())
        self._lookups = {lookup.item: lookup for lookup in lookups}
        self._places = {
            placement.ring_version: {item: placement.node_for(item) for item in self._lookups}
            for placement in world.placements
        }
        self._shards = {shard.lineage: shard for shard in world.shards}
        self._affected: dict[tuple[str, int], tuple[Lookup, ...]] = {}
        self._stripes = {
            stripe_key("sim", shard.lineage, number): (shard, number)
            for shard in world.shards
            for number in range(max(world.options.stripes, *STRIPES))
        }
        self._records = {record_key("sim", shard.lineage): shard for shard in world.shards}
        self._is_clock_struck = not world.options.faults.isdisjoint(("stop_clock", "step_clock"))
        self._staleness_max = _staleness_max(world.options, is_clock_struck=self._is_clock_struck)
        self.outcomes: Counter[ReadOutcome] = Counter()
        self.served: set[bytes] = set()

    # -- reports of the world -----------------------------------------------------------------------------

    def executed(self, who: str, node: str, request: Request, reply: Reply) -> None:
        if isinstance(request, Get):
            if request.key in self._lookups and who in self._strikers:
                self._note_held(
                    who, node, self._lookups[request.key], reply.value if isinstance(reply, Item) else None
                )
            if request.key in self._lookups and isinstance(reply, Item):
                self._seen[who, request.key] = Seen(self._world.now, reply.value, self._acknowledged[node])
        elif isinstance(request, Append):
            if request.key in self._stripes:
                chunk = _chunk_of(request.value)
                self._strikers.add(who)
                place = who, node, request.key, chunk.life
                held = self._struck.get(place)
                self._struck[place] = chunk.position if held is None else held.union(chunk.position)
        elif isinstance(request, Delete):
            if request.key in self._lookups and request.version is None:
                self._note_removal(who, node, self._lookups[request.key])
        elif isinstance(request, _WRITES) and isinstance(reply, Stored):
            lookup = self._lookups.get(request.key)
            if lookup is not None:
                if request.value != STUB:
                    self._check_entry(node, lookup, request.value)
                    if who in self._strikers:
                        self._note_held(who, node, lookup, request.value)
            elif request.key in self._records:
                self._check_record(node, self._records[request.key], _record_of(request.value))
            elif request.key in self._stripes:
                self._check_stripe(node, *self._stripes[request.key], request.value)

    def find_acknowledged(self, lookups: Sequence[Lookup]) -> list[Mapping[tuple[str, bytes], Position]]:
        """All that the node of each lookup has acknowledged by now, by lineage and life."""
        return [self._acknowledged[lookup.node] for lookup in lookups]

    def read_done(
        self,
        who: str,
        lookups: Sequence[Lookup],
        reads: Sequence[Read],
        acknowledged: Sequence[Mapping[tuple[str, bytes], Position]],
        accepted_seconds: float | None = None,
    ) -> None:
        """``acknowledged``: answer of `find_acknowledged` when the read began. ``accepted_seconds``: the staleness
        that this call accepts."""
        staleness_max = self._staleness_max if accepted_seconds is None else self._bound(accepted_seconds)
        for lookup, read, before in zip(lookups, reads, acknowledged, strict=True):
            self.outcomes[read.outcome] += 1
            if read.shows_required:
                self._check_miss(who, lookup, read, before)
            if read.outcome is ReadOutcome.HIT:
                self.served.add(lookup.item)
                seen = self._seen[who, lookup.item]
                if read.payload != self._world.value_of(_entry_of(seen.data)):
                    raise Violation(
                        "I1", f"{who} got {lookup.item.decode()} with parts of another value: {read.payload!r}"
                    )
                self._check_hit(who, lookup, seen, staleness_max)
            elif read.outcome is ReadOutcome.MOVED:
                self.served.add(lookup.item)
                there = replace(lookup, node=lookup.previous_node)
                self._check_hit(who, there, self._seen[who, lookup.item], staleness_max)
                self._check_miss(who, lookup, read, before)

    def own_read_done(
        self, who: str, lookups: Sequence[Lookup], reads: Sequence[Read], commits: Sequence[tuple[Shard, Commit, int]]
    ) -> None:
        """``commits``: the reader's own, which it has asked for, each with the epoch of its token."""
        for lookup, read in zip(lookups, reads, strict=True):
            self._check_commits(who, lookup, read, commits)

    def read_together(
        self, who: str, lookups: Sequence[Lookup], reads: Sequence[Read], *, is_of_entries: bool
    ) -> None:
        """I11: entries are of one moment of the log; rows of one snapshot show no transaction in part, which is all
        that a server promises that applies transactions in another order."""
        if self._lost_epochs:
            return  # nothing can tell lost commits from those that have their numbers
        versions: dict[str, list[tuple[str, int, int]]] = {}
        for lookup, read in zip(lookups, reads, strict=True):
            numbers = read.value if read.payload is None else numbers_of(read.payload)
            shown = repeat(0) if numbers is None else iter(numbers)
            for lineage in lookup.policy.lineages:
                for table in lookup.policy.tables:
                    row = self._world.rows[lookup.item]
                    versions.setdefault(lineage, []).append((table, row, next(shown)))
        for lineage, of_rows in versions.items():
            numbers = {version for _, _, version in of_rows}
            for table, row, version in of_rows:
                for commit in self._shards[lineage].by_row.get((table, row), ()):
                    at = commit.version((table, row))
                    if at > version and (at <= max(numbers) if is_of_entries else at in numbers):
                        raise Violation(
                            "I11",
                            f"{who} got {table}[{row}] at version {version} together with what shows commit {at}",
                        )

    def node_emptied(self, node: str) -> None:
        """Everything on the node is gone, and versions repeat."""
        self._struck = {place: held for place, held in self._struck.items() if place[1] != node}
        self._removed = {place: held for place, held in self._removed.items() if place[0] != node}

    def memory_returned(self, node: str) -> None:
        """An earlier memory of the node has taken the place of the present one."""
        self.node_emptied(node)
        for (where, _, _), life in self._lives.items():
            life.is_over |= where == node

    def history_lost(self, shard: Shard) -> None:
        """Commits will be gone for good: in this epoch, nothing can verify values that were cached from them. Their
        hits are excused as long as a lease may last whose heartbeat went to the previous primary."""
        self._lost_epochs[shard.lineage] = shard.epoch
        for key, life in self._lives.items():
            if key[1] == shard.lineage:
                life.is_excused = True
                if life.last is not None and life.last.primary and not life.lost_with:
                    life.lost_at, life.lost_with = self._world.now, life.last.primary

    def _is_excused(self, lineage: str, life: Life | None) -> bool:
        if life is None or life.last is None or life.is_excused:
            return True
        return life.last.epoch <= self._lost_epochs.get(lineage, -1)

    # -- I1, I7 --------------------------------------------------------------------------------------------

    def _bound(self, accepted_seconds: float) -> float:
        """The bound of one call counts on the clock of the node."""
        if self._is_clock_struck:
            return self._staleness_max
        return accepted_seconds * (1 + 2 * self._world.options.clock_rate_error)

    def _check_hit(self, who: str, lookup: Lookup, seen: Seen, staleness_max: float) -> None:
        options = self._world.options
        oldest = seen.at - staleness_max
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
            if life is not None and life.lost_at < oldest:
                raise Violation(
                    "I1",
                    f"{who} got {lookup.item.decode()} of a life of {lookup.node} from which a failover took commits "
                    f"{seen.at - life.lost_at:.1f} s before",
                )
            row = table, self._world.rows[lookup.item]
            if life is not None and life.is_accepted:
                previous = [each for each in shard.by_row.get(row, ()) if each.version(row) <= version]
                if previous:
                    self._check_exists(lookup, shard, table, version, previous[-1])
            if self._is_excused(shard.lineage, life):
                continue
            acknowledged = seen.acknowledged.get((shard.lineage, name), NOTHING)
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
        """In a reshard: a row has one history over all its shards. Copying it is not an event of that history."""
        versions: dict[str, int] = {}
        for _, table, version, _, _ in self._versions(lookup, seen.data):
            versions[table] = max(version, versions.get(table, 0))
        for table, version in versions.items():
            row = table, self._world.rows[lookup.item]
            for shard in self._world.shards:
                if shard.lineage in lookup.policy.lineages:
                    continue
                for commit in shard.by_row.get(row, ()):
                    if commit.versions is not None or commit.version(row) <= version:
                        continue  # a copy replaces nothing: what it copies is a change of the shard that it came from
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
        if commit.version((table, self._world.rows[lookup.item])) < version:
            raise Violation(
                "I1",
                f"{lookup.item.decode()} has {table} at version {version}, which {shard.lineage} lost in a failover",
            )

    def _check_entry(self, node: str, lookup: Lookup, data: bytes) -> None:
        """A fill: in the life it names it must not lack anything acknowledged."""
        for shard, table, version, name, position in self._versions(lookup, data):
            life = self._lives.get((node, shard.lineage, name))
            if life is None or life.is_over or self._is_excused(shard.lineage, life):
                continue
            assert life.last is not None, "a life without a record is excused"
            floor = life.last.table_floors.get(table)
            if floor is not None and not position.contains(floor):
                continue  # it is stored, but no hit
            starts = [life.last.find_start([ring]) for ring in self._placing(node, lookup, life.last)]
            if not any(start is not None and position.contains(start) for start in starts):
                continue  # the same: by no ring of the record
            row = table, self._world.rows[lookup.item]
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
        # No row is a row before its first version.
        value = self._world.value_of(entry)
        numbers = repeat(0) if value is None else iter(numbers_of(value))
        stamps = {stamp.lineage: stamp for stamp in entry.stamps}
        # In a reshard an entry may be of other shards than those of this lookup.
        for lineage in stamps if self._world.reshard is not None else lookup.policy.lineages:
            stamp = stamps[lineage]
            for table in lookup.policy.tables:
                yield self._shards[lineage], table, next(numbers), stamp.life, stamp.position

    # -- I10 -----------------------------------------------------------------------------------------------

    def _check_miss(self, who: str, lookup: Lookup, read: Read, before: Mapping[tuple[str, bytes], Position]) -> None:
        """A miss lacks no invalidation that its node had acknowledged before the read began."""
        if self._world.reshard is not None:
            return
        numbers = read.value if read.payload is None else numbers_of(read.payload)
        shown = repeat(0) if numbers is None else iter(numbers)
        for lineage in lookup.policy.lineages:
            known = [
                position
                for (of, name), position in before.items()
                if of == lineage and not self._is_excused(lineage, self._lives.get((lookup.node, lineage, name)))
            ]
            for table in lookup.policy.tables:
                version, row = next(shown), (table, self._world.rows[lookup.item])
                for commit in reversed(self._shards[lineage].by_row.get(row, ())):
                    if commit.version(row) <= version:
                        break
                    if any(position.contains(commit.position) for position in known):
                        raise Violation(
                            "I10",
                            f"{who} got {lookup.item.decode()} with {table} at version {version} by "
                            f"{read.outcome.name}, after {lookup.node} had acknowledged commit {commit.number}",
                        )

    # -- I9 ------------------------------------------------------------------------------------------------

    def _check_commits(
        self, who: str, lookup: Lookup, read: Read, commits: Sequence[tuple[Shard, Commit, int]]
    ) -> None:
        """A read has the reader's own commits, but for those that a failover took."""
        numbers = read.value if read.payload is None else numbers_of(read.payload)
        shown = repeat(0) if numbers is None else iter(numbers)
        for lineage in lookup.policy.lineages:
            for table in lookup.policy.tables:
                version, row = next(shown), (table, self._world.rows[lookup.item])
                for shard, commit, epoch in commits:
                    if shard.lineage != lineage or commit not in shard.by_row.get(row, ()):
                        continue
                    if shard.flavor == "mariadb" and epoch <= self._lost_epochs.get(lineage, -1):
                        continue  # another commit can have the number of one that was lost
                    if version < commit.version(row):
                        raise Violation(
                            "I9",
                            f"{who} got {lookup.item.decode()} with {table} at version {version} by "
                            f"{read.outcome.name}, after its own commit {commit.number} of {lineage} had returned",
                        )

    # -- I2 ------------------------------------------------------------------------------------------------

    def _check_stripe(self, node: str, shard: Shard, number: int, data: bytes) -> None:
        """A stripe was written as a whole: it must hold all that its life has acknowledged."""
        for (where, lineage, name), life in self._lives.items():
            if (where, lineage) != (node, shard.lineage) or life.is_over or self._is_excused(lineage, life):
                continue
            stripe = find_stripe(data, name)
            if stripe is None or life.last is None:
                continue
            for commit in shard.log:
                if life.acknowledged.contains(commit.position):
                    self._check_protection(node, life.last, commit, number, stripe)

    def _check_stripes(self, node: str, record: NodeRecord, commit: Commit) -> None:
        """A commit is acknowledged: each stripe that is there must hold it."""
        numbers = {
            stripe_number(lookup.item, record.stripes)
            for lookup in self._exposed(node, record.lineage, record, commit)
        }
        for number in numbers:
            held = self._world.stores[node].peek(stripe_key("sim", record.lineage, number))
            stripe = None if held is None else find_stripe(held.value, record.life)
            if stripe is not None:
                self._check_protection(node, record, commit, number, stripe)

    def _check_protection(self, node: str, record: NodeRecord, commit: Commit, number: int, stripe: Stripe) -> None:
        if record.floor.contains(commit.position) or stripe.position.contains(commit.position):
            return
        for lookup in self._exposed(node, record.lineage, record, commit):
            if stripe_number(lookup.item, record.stripes) == number:
                raise Violation(
                    "I2",
                    f"{node}: commit {commit.number} of {record.lineage} is acknowledged, and neither the stripe of "
                    f"{lookup.item.decode()} nor the floor holds it",
                )

    def _exposed(self, node: str, lineage: str, record: NodeRecord, commit: Commit) -> Iterator[Lookup]:
        """The keys that a commit changed and neither a table floor nor the object's start protects."""
        affected = self._find_affected(lineage, commit)
        if not affected:
            return
        life = self._lives[node, lineage, record.life]
        for lookup in affected:
            policy = lookup.policy
            rings = [ring for ring in self._placing(node, lookup, record) if not life.is_untold(ring, record, commit)]
            starts = [record.find_start([ring]) for ring in rings]
            if all(start is not None and start.contains(commit.position) for start in starts):
                continue
            coverage = record.objects.get(policy.name)
            if coverage is None or coverage.start.contains(commit.position):
                continue
            if life.is_untold(policy.name, record, commit):
                continue
            floors = (record.table_floors.get(table) for table in policy.tables)
            if any(floor is not None and floor.contains(commit.position) for floor in floors):
                continue
            yield lookup

    def _placing(self, node: str, lookup: Lookup, record: NodeRecord) -> list[int]:
        """The rings of a record that place a key on its node."""
        return [ring for ring in record.rings if self._places.get(ring, {}).get(lookup.item) == node]

    def _find_affected(self, lineage: str, commit: Commit) -> tuple[Lookup, ...]:
        """The keys that a commit changed, wherever they are."""
        known = self._affected.get((lineage, commit.number))
        if known is None:
            known = self._affected[lineage, commit.number] = tuple(
                lookup
                for lookup in self._lookups.values()
                if lineage in lookup.policy.lineages
                and lookup.item in self._named
                and any((table, self._world.rows[lookup.item]) in commit.rows for table in lookup.policy.tables)
            )
        return known

    # -- I3, I4 --------------------------------------------------------------------------------------------

    def _check_record(self, node: str, shard: Shard, record: NodeRecord) -> None:
        life = self._lives.setdefault((node, shard.lineage, record.life), Life(shard.nothing))
        life.join(record)
        if life.is_over and record.is_open:
            raise Violation(
                "I1", f"{node}: a record opens the life {record.life.hex()[:4]} in an earlier memory of the node"
            )
        before, life.last = life.last, record
        previous, self._current[node, shard.lineage] = self._current.get((node, shard.lineage), life), life
        if previous is not life:
            previous.ended_at, life.ended_at = self._world.now, None
        if life.lost_with and record.primary != life.lost_with:
            life.is_accepted = True
        if self._is_excused(shard.lineage, life):
            return
        for commit in self._newly_acknowledged(shard, life, record):
            self._check_acknowledged(node, shard.lineage, record, commit)
            self._check_stripes(node, record, commit)
        life.acknowledged = life.acknowledged.union(record.progress)
        self._acknowledged[node] = {**self._acknowledged[node], (shard.lineage, record.life): life.acknowledged}
        if record.is_open:
            self._check_growth(node, shard, life, before, record)
            life.open_progress = record.progress

    def _check_growth(
        self, node: str, shard: Shard, life: Life, before: NodeRecord | None, record: NodeRecord
    ) -> None:
        if not life.open_progress.is_empty and not record.progress.contains(life.open_progress):
            raise Violation(
                "I3", f"{node}: the progress of {shard.lineage} shrank from {life.open_progress} to {record.progress}"
            )
        if before is not None and before.is_open and before.floor != record.floor:
            raise Violation("I3", f"{node}: the floor of {shard.lineage} moved within a life")
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

    def _check_acknowledged(self, node: str, lineage: str, record: NodeRecord, commit: Commit) -> None:
        """I4: whatever progress names was carried out on this node, or is in the floor."""
        if record.floor.contains(commit.position):
            return
        for lookup in self._exposed(node, lineage, record, commit):
            removed = self._removed.get((node, lookup.item, lineage, record.life), NOTHING)
            if not removed.contains(commit.position):
                raise Violation(
                    "I4",
                    f"{node}: progress names commit {commit.number} of {lineage}, but {lookup.item.decode()} was not "
                    "removed after it was appended to its stripe",
                )

    def _note_removal(self, who: str, node: str, lookup: Lookup, held: Mapping[str, Stamp] | None = None) -> None:
        """``held``: the stamps of the entry that stands in the place of the removed one."""
        for (sender, where, key, life), position in self._struck.items():
            if (sender, where) != (who, node):
                continue
            shard, number = self._stripes[key]
            known_life = self._lives.get((node, shard.lineage, life))
            last = None if known_life is None else known_life.last
            if last is not None and stripe_number(lookup.item, last.stripes) == number:
                place = node, lookup.item, shard.lineage, life
                if held is not None:
                    stamp = held.get(shard.lineage)
                    if stamp is None or stamp.life != life:
                        continue
                    position = position.intersection(stamp.position)
                known = self._removed.get(place)
                self._removed[place] = position if known is None else known.union(position)

    def _note_held(self, who: str, node: str, lookup: Lookup, data: bytes | None) -> None:
        """Who appends to stripes saw, or stored, this item: what an entry has, and an absent one lacks, needs no
        delete."""
        if data is None:
            self._note_removal(who, node, lookup)
        elif data != STUB:
            stamps = {stamp.lineage: stamp for stamp in _entry_of(data).stamps}
            self._note_removal(who, node, lookup, stamps)
