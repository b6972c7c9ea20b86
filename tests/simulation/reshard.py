"""One shard becomes two, or two become one, while readers with either topology run (ADR 0017, docs/topology.md).

Each shard has a lineage of its own. The operator does what docs/topology.md says: destinations are followed and
closed; the sources become read-only and the rows are copied; the flags are swapped and all invalidators are started
again; when the sources' records are closed on every node, writes go to the destinations. Readers learn of it at any
moment.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from freshness.algorithm.envelope import NodeRecord, record_key
from freshness.algorithm.request import Wait
from freshness.stream.source import RowChange
from tests.simulation.database import Shard

if TYPE_CHECKING:
    from tests.simulation.world import World

LOOK_SECONDS: Final = 0.25

LEFT_BEHIND_SHARE: Final = 0.8

STAYS_OPEN: Final = "a source stays open when its keys have moved"
"""A planted bug, see `tests.simulation.bugs`."""


@dataclass(slots=True)
class Reshard:
    """``is_writable``: the application may write; ``is_swapped``: the destinations serve in the file of invalidators
    that start now; ``has_moved``: writes go to the destinations. ``left_behind``: one of a source's two invalidators,
    which stands still during the swap and keeps the old file (F102)."""

    world: World
    is_split: bool
    is_writable: bool = True
    has_moved: bool = False
    is_swapped: bool = False
    left_behind: str = ""

    @property
    def topology(self) -> int:
        return 2 if self.is_swapped else 1

    def shards(self, *, has_moved: bool) -> list[Shard]:
        """Those that serve before, or after: the first shard is the whole, the others are halves."""
        whole, *halves = self.world.shards
        return halves if self.is_split == has_moved else [whole]

    def owner(self, key: int, *, has_moved: bool) -> Shard:
        shards = self.shards(has_moved=has_moved)
        return shards[key % len(shards)]

    def is_serving(self, shard: Shard, *, has_previous_file: bool) -> bool:
        is_left_open = self.world.bug == STAYS_OPEN and shard in self.shards(has_moved=False)
        return is_left_open or shard in self.shards(has_moved=self.is_swapped and not has_previous_file)

    def operate(self) -> Generator[Any, Any, Any]:
        world = self.world
        yield Wait(world.random.choice((5.0, 8.0, 12.0)))
        self.is_writable = False
        world.note("the sources are read-only")
        yield Wait(0.1)
        self._copy()
        yield Wait(world.random.choice((0.1, 1.0)))
        while not self._has_all():
            yield Wait(LOOK_SECONDS)
        self.is_swapped = True
        if world.options.invalidators > 1 and not world.calm and world.random.random() < LEFT_BEHIND_SHARE:
            source = world.random.choice(self.shards(has_moved=False))
            self.left_behind = f"{source.lineage} invalidator 0"
        world.note("the flags are swapped")
        world.restart_invalidators()
        yield from self._wait_until_closed()
        self.has_moved = self.is_writable = True
        world.note("writes go to the destinations")
        while True:
            yield Wait(60.0)

    def _copy(self) -> None:
        """All rows, with the versions that they have."""
        for key in range(self.world.options.keys):
            source, target = self.owner(key, has_moved=False), self.owner(key, has_moved=True)
            source.show_all()
            for table in source.tables:
                row = table, key
                change = RowChange(table, "insert", None, {"id": key})
                target.write(self.world.now, (change,), versions={row: source.primary.version(row)})
            self.world.note(f"key {key} is copied from {source.lineage} to {target.lineage}")

    def _has_all(self) -> bool:
        """Whether every server of the destinations has what was copied."""
        return all(
            server.executed.contains(commit.position)
            for shard in self.shards(has_moved=True)
            for commit in shard.log
            if commit.versions is not None
            for server in (shard.primary, *shard.replicas)
        )

    def _wait_until_closed(self) -> Generator[Any, Any, None]:
        """Until the number is in force on the sources, and each node's record of a source is closed and has it, too.
        One that does not answer is closed when its lease ran out; what has lapsed opens only with a new heartbeat."""
        world = self.world
        while any(shard.topology < self.topology for shard in self.shards(has_moved=False)):
            yield Wait(LOOK_SECONDS)
        if world.bug == STAYS_OPEN:
            return
        silent_until = dict.fromkeys(world.stores, world.now + world.options.lease_seconds + 1)
        waiting = [(node, shard) for node in world.stores for shard in self.shards(has_moved=False)]
        while waiting:
            yield Wait(LOOK_SECONDS)
            waiting = [
                (node, shard)
                for node, shard in waiting
                if (world.stores[node].down and world.now < silent_until[node]) or self._is_open(node, shard)
            ]

    def _is_open(self, node: str, shard: Shard) -> bool:
        item = self.world.stores[node].peek(record_key("sim", shard.lineage))
        if item is None:
            return False
        record = NodeRecord.decode(item.value)
        return record.is_open or record.topology < self.topology
