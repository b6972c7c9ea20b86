"""The invariants of DESIGN §8, checked at every step against what the world knows and the procedures do not."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from freshness.apply import INSPECT_SECONDS
from freshness.cachekey import tombstone_key
from freshness.envelope import STUB, Filled, NodeRecord, Tombstone, record_key
from freshness.errors import FormatError
from freshness.position import MysqlGtidSet, Position
from freshness.read import Lookup, Read
from freshness.request import Add, Cas, Delete, Get, Item, Reply, Request, Stored
from freshness.rule import ReadOutcome
from tests.simulation.database import Commit, Shard

if TYPE_CHECKING:
    from tests.simulation.world import World

PROTECTION_EVERY_STEPS: Final = 5
NOTHING: Final = MysqlGtidSet()


class Violation(AssertionError):
    """An invariant does not hold. ``invariant``: its number."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


@dataclass(slots=True)
class Life:
    """What was published in one life of one node, for one lineage."""

    acknowledged: Position = NOTHING
    last: NodeRecord | None = None
    open_floor: Position = NOTHING
    open_progress: Position = NOTHING
    unfloored: list[Commit] = field(default_factory=list)
    is_damaged: bool = False
    lost_tombstone_at: float | None = None


@dataclass(slots=True)
class Seen:
    """What a reader's last `Get` of an entry returned, and what had been acknowledged then.

    ``at``: when the reader asked; it may have been paused before the node answered.
    """

    at: float
    data: bytes
    acknowledged: dict[tuple[str, bytes], Position]


class Checker:
    """Told of every request that a node carries out, every finished read, every fault that excuses something."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lives: dict[tuple[str, str, bytes], Life] = {}
        self._seen: dict[tuple[str, bytes], Seen] = {}
        self._removed: dict[tuple[str, bytes], Position] = {}
        self._lost_at: dict[str, float] = {}
        self._lookups = {lookup.item: lookup for lookup in world.lookups()}
        self._records = {record_key("sim", shard.lineage): shard for shard in world.shards}
        self.outcomes: dict[ReadOutcome, int] = {}

    # -- what the world tells -----------------------------------------------------------------------------

    def executed(self, who: str, node: str, request: Request, reply: Reply) -> None:
        if isinstance(request, Get):
            lookup = self._lookups.get(request.key)
            if lookup is not None and isinstance(reply, Item):
                known = {(k[1], k[2]): life.acknowledged for k, life in self._lives.items() if k[0] == node}
                began = self._world.step_began(who)
                self._seen[who, request.key] = Seen(began, reply.value, known)
        elif isinstance(request, Delete):
            if request.key in self._lookups and request.version is None:
                self._note_removal(node, request.key)
        elif isinstance(request, Add | Cas) and isinstance(reply, Stored):
            shard = self._records.get(request.key)
            if shard is not None:
                self._check_record(node, shard, NodeRecord.decode(request.value))
            elif request.key in self._lookups and request.value != STUB:
                self._check_entry(node, self._lookups[request.key], request.value)

    def read_done(self, who: str, lookups: Sequence[Lookup], reads: Sequence[Read]) -> None:
        for lookup, read in zip(lookups, reads, strict=True):
            self.outcomes[read.outcome] = self.outcomes.get(read.outcome, 0) + 1
            if read.outcome is ReadOutcome.HIT:
                self._check_hit(who, lookup, self._seen[who, lookup.item])

    def stepped(self) -> None:
        if self._world.steps_taken % PROTECTION_EVERY_STEPS == 0:
            self._check_protection()

    def node_emptied(self, node: str) -> None:
        """Everything on the node is gone, its lives are over."""
        for key in [key for key in self._removed if key[0] == node]:
            del self._removed[key]
        self.node_damaged(node)

    def node_damaged(self, node: str, *, is_counted: bool = False) -> None:
        """The node lost what it must not. Until somebody notices, nobody can know; what is counted must be
        noticed with the next inspection."""
        for key, life in self._lives.items():
            if key[0] == node:
                life.is_damaged = True
                if is_counted and life.lost_tombstone_at is None:
                    life.lost_tombstone_at = self._world.now

    def history_lost(self, lineage: str) -> None:
        """Commits are gone for good: what was cached from them has no truth to be compared with."""
        self._lost_at[lineage] = self._world.now
        for key, life in self._lives.items():
            if key[1] == lineage:
                life.is_damaged = True

    # -- I1 ------------------------------------------------------------------------------------------------

    def _check_hit(self, who: str, lookup: Lookup, seen: Seen) -> None:
        entry = Filled.decode(seen.data)
        lives = {stamp.lineage: stamp.life for stamp in entry.stamps}
        for shard, table, version in self._versions(lookup, entry):
            life = self._lives.get((lookup.node, shard.lineage, lives[shard.lineage]))
            if life is None or life.is_damaged or shard.lineage in self._lost_at:
                continue
            acknowledged = seen.acknowledged.get((shard.lineage, lives[shard.lineage]), NOTHING)
            for commit in reversed(shard.by_row.get((table, lookup.values[0]), [])):
                if commit.number <= version:
                    break
                if acknowledged.contains(commit.position):
                    raise Violation(
                        "I1",
                        f"{who} got {lookup.item.decode()} with {table} at version {version} from {lookup.node} "
                        f"after the invalidation by commit {commit.number} was acknowledged",
                    )
                if commit.at < seen.at - self._world.options.max_staleness_seconds - 1:
                    raise Violation(
                        "I7",
                        f"{who} got {lookup.item.decode()} with {table} at version {version}, which commit "
                        f"{commit.number} replaced {seen.at - commit.at:.1f} s before",
                    )

    def _check_entry(self, node: str, lookup: Lookup, data: bytes) -> None:
        """A fill: in the life it names it must not lack anything acknowledged."""
        entry = Filled.decode(data)
        lives = {stamp.lineage: stamp.life for stamp in entry.stamps}
        positions = {stamp.lineage: stamp.position for stamp in entry.stamps}
        for shard, table, version in self._versions(lookup, entry):
            life = self._lives.get((node, shard.lineage, lives[shard.lineage]))
            if life is None or life.is_damaged or shard.lineage in self._lost_at:
                continue
            floor = life.last.table_floors.get(table) if life.last is not None else None
            if floor is not None and not positions[shard.lineage].contains(floor):
                continue  # it is stored, but no hit
            for commit in reversed(shard.by_row.get((table, lookup.values[0]), [])):
                if commit.number <= version:
                    break
                if life.acknowledged.contains(commit.position):
                    raise Violation(
                        "I1",
                        f"{lookup.item.decode()} was filled on {node} with {table} at version {version} after the "
                        f"invalidation by commit {commit.number} was acknowledged",
                    )

    def _versions(self, lookup: Lookup, entry: Filled) -> list[tuple[Shard, str, int]]:
        assert entry.value is not None
        numbers = iter(ast.literal_eval(entry.value.decode()))
        shards = {shard.lineage: shard for shard in self._world.shards}
        return [
            (shards[lineage], table, next(numbers))
            for lineage in lookup.policy.lineages
            for table in lookup.policy.tables
        ]

    # -- I2 ------------------------------------------------------------------------------------------------

    def _check_protection(self) -> None:
        """Every acknowledged event: its tombstone is alive, or a floor has it, or the record is not open."""
        for (node, lineage, name), life in self._lives.items():
            if not life.unfloored or life.is_damaged or lineage in self._lost_at:
                continue
            store = self._world.stores[node]
            item = store.peek(record_key("sim", lineage))
            if item is None:
                continue
            record = NodeRecord.decode(item.value)
            if record.life != name or not record.is_open:
                continue
            life.unfloored = [c for c in life.unfloored if not record.floor.contains(c.position)]
            for commit in life.unfloored:
                self._check_commit_protection(node, lineage, record, commit)

    def _check_commit_protection(self, node: str, lineage: str, record: NodeRecord, commit: Commit) -> None:
        for lookup in self._concerned(node, lineage, commit):
            floors = (record.table_floors.get(table) for table in lookup.policy.tables)
            if any(floor is not None and floor.contains(commit.position) for floor in floors):
                continue
            held = self._world.stores[node].peek(tombstone_key(lookup.item))
            if held is not None and _tombstone_has(held.value, lineage, commit.position):
                continue
            raise Violation(
                "I2",
                f"{node}: commit {commit.number} of {lineage} is acknowledged, and neither a tombstone of "
                f"{lookup.item.decode()} nor a floor holds it",
            )

    def _concerned(self, node: str, lineage: str, commit: Commit) -> list[Lookup]:
        return [
            lookup
            for lookup in self._lookups.values()
            if lookup.node == node
            and lineage in lookup.policy.lineages
            and any((table, lookup.values[0]) in commit.rows for table in lookup.policy.tables)
        ]

    # -- I3, I4 --------------------------------------------------------------------------------------------

    def _check_record(self, node: str, shard: Shard, record: NodeRecord) -> None:
        life = self._lives.setdefault((node, shard.lineage, record.life), Life())
        if life.is_damaged or shard.lineage in self._lost_at:
            self._check_end(node, life, record)
            life.last = record
            return
        new = [
            commit
            for commit in shard.log
            if record.progress.contains(commit.position) and not life.acknowledged.contains(commit.position)
        ]
        for commit in new:
            self._check_acknowledged(node, shard.lineage, record, commit)
        life.acknowledged = life.acknowledged.union(record.progress)
        life.unfloored += [commit for commit in new if not record.floor.contains(commit.position)]
        if record.is_open:
            for what, before, after in (
                ("floor", life.open_floor, record.floor),
                ("progress", life.open_progress, record.progress),
            ):
                if not after.contains(before):
                    raise Violation(
                        "I3", f"{node}: the {what} of {shard.lineage} shrank from {before} to {after}"
                    )
            life.open_floor, life.open_progress = record.floor, record.progress
        for table, floor in (life.last.table_floors if life.last is not None else {}).items():
            if not record.table_floors.get(table, NOTHING).contains(floor) and record.is_open:
                raise Violation("I3", f"{node}: the floor of table {table} shrank")
        life.last = record

    def _check_end(self, node: str, life: Life, record: NodeRecord) -> None:
        """F67: a life in which a tombstone was lost may not be published as open after the next inspection."""
        lost_at = life.lost_tombstone_at
        is_head_mode = record.floor.contains(record.progress)
        if lost_at is not None and record.is_open and not is_head_mode:
            grace = INSPECT_SECONDS + self._world.options.lease_seconds + 1
            if self._world.now > lost_at + grace:
                raise Violation(
                    "I2", f"{node} lost a tombstone {self._world.now - lost_at:.1f} s ago and goes on"
                )

    def _check_acknowledged(self, node: str, lineage: str, record: NodeRecord, commit: Commit) -> None:
        """I4: whatever progress names was carried out on this node, or is in the floor."""
        if record.floor.contains(commit.position):
            return
        for lookup in self._concerned(node, lineage, commit):
            floors = (record.table_floors.get(table) for table in lookup.policy.tables)
            if any(floor is not None and floor.contains(commit.position) for floor in floors):
                continue
            if not self._removed.get((node, lookup.item), NOTHING).contains(commit.position):
                raise Violation(
                    "I4",
                    f"{node}: progress names commit {commit.number} of {lineage}, but {lookup.item.decode()} was not "
                    "removed under its tombstone",
                )

    def _note_removal(self, node: str, item: bytes) -> None:
        held = self._world.stores[node].peek(tombstone_key(item))
        if held is None:
            return
        try:
            tombstone = Tombstone.decode(held.value)
        except FormatError:
            return
        known = self._removed.get((node, item), NOTHING)
        for position in tombstone.positions.values():
            known = known.union(position)
        self._removed[node, item] = known


def _tombstone_has(data: bytes, lineage: str, position: Position) -> bool:
    try:
        tombstone = Tombstone.decode(data)
    except FormatError:
        return False
    return any(held.contains(position) for (name, _), held in tombstone.positions.items() if name == lineage)
