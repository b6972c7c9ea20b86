"""F129: a node breaks off, and comes back with an older memory: a file, or a replica that was promoted.

By the records that a reader has read on the broken connection its old entries would be hits. The real driver, nodes
in memory; each flow of a read meets the failure in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from freshness.algorithm.apply import RESUME_SECONDS
from freshness.algorithm.driver import BlockingDriver
from freshness.algorithm.envelope import record_key, resume_key
from freshness.algorithm.lookup import Loaded
from freshness.algorithm.read import read_through
from freshness.algorithm.request import Add, Request
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.shortway import find_hit, find_hits
from freshness.algorithm.state import ReadContext
from freshness.errors import FreshnessError, MembershipLost, NodeUnavailable
from freshness.nodes.memory import MemoryNode
from tests.schedules.world import (
    L_SECONDS,
    LINEAGE,
    NAMESPACE,
    NODE,
    NODE_REFRESH_SECONDS,
    Invalidator,
    LivingConnection,
    Reader,
    Run,
    World,
    lookup,
)

FIRST, SECOND = lookup(1), lookup(2)


class Node(MemoryNode):
    """Its connection breaks at the flow of number ``breaks_at``, and its memory is then an older one. The record in
    it is not believed: it names another process."""

    def __init__(self, world: World) -> None:
        super().__init__(world.stores[NODE])
        self.flows = 0
        self.breaks_at = -1
        self.older = world.stores[NODE].state()

    def send(self, requests: Sequence[Request]) -> None:
        self.flows += 1
        if self.flows == self.breaks_at:
            self.store.restore(self.older)
            self.store.evict(record_key(NAMESPACE, LINEAGE))
            raise NodeUnavailable(f"{self.name} broke the connection", hint="it comes back")
        super().send(requests)


class Process:
    """A reader as the library has it: the short ways first, and what they raise is left to the procedure."""

    def __init__(self, world: World, **changes: Any) -> None:
        reader = Reader(world, world.replica().catch_up(), **changes)
        self.world, self.context, self.node = world, reader.context, Node(world)
        self.driver = BlockingDriver({NODE: self.node}, world.sleep, load=self._load)

    def _load(self, lookups: Sequence[Any], at_least: Mapping[str, Any]) -> Any:
        token = self.world.replica().catch_up().token()
        return [Loaded([1, 2, 3], {LINEAGE: token}) for _ in lookups]

    def get(self) -> ReadOutcome:
        try:
            hit = find_hit(self.context, FIRST, self.node.find)
        except FreshnessError:
            hit = None
        return hit.outcome if hit is not None else self.run(FIRST)[0]

    def get_many(self) -> list[ReadOutcome]:
        hits = self.driver.run(find_hits(self.context, [FIRST, SECOND]))
        missing = [each for each, hit in zip((FIRST, SECOND), hits, strict=True) if hit is None]
        others = iter(self.run(*missing) if missing else ())
        return [next(others) if hit is None else hit.outcome for hit in hits]

    def run(self, *lookups: Any) -> list[ReadOutcome]:
        return [each.outcome for each in self.driver.run(read_through(self.context, lookups))]


def begin(**changes: Any) -> tuple[Process, Invalidator]:
    """Both entries are of before the last change in the older memory; in the current one they are not there."""
    world = World()
    invalidator = Invalidator(world).join()
    invalidator.apply()
    process = Process(world, **changes)
    assert process.get_many() == [ReadOutcome.FILLED, ReadOutcome.FILLED]
    process.node.older = world.stores[NODE].state()
    world.commit(FIRST.item, SECOND.item)
    invalidator.apply()
    return process, invalidator


def find_old_hits(process: Process) -> list[ReadOutcome]:
    """Reads after the break, within the time for which records are kept."""
    return [each for each in [process.get(), *process.get_many()] if each is ReadOutcome.HIT]


@pytest.mark.parametrize("at", range(1, 6))
@pytest.mark.parametrize("asks", ["get", "get_many", "in parts"])
def test_no_view_outlives_its_connection(asks: str, at: int) -> None:
    """A miss has a lookup, guards, fills and the stubs that it drops; a value in parts has its parts beside these."""
    process, _ = begin(**({"part_bytes": 2} if asks == "in parts" else {}))
    process.node.breaks_at = process.node.flows + at
    while process.node.flows < process.node.breaks_at:
        process.get() if asks == "get" else process.get_many()
        process.world.commit(FIRST.item)  # not applied: no record says so
    assert find_old_hits(process) == []


def test_the_short_way_meets_the_failure_first() -> None:
    process, _ = begin()
    assert process.get() is ReadOutcome.FILLED
    process.node.breaks_at = process.node.flows + 1
    assert process.get() is ReadOutcome.NO_RECORD
    assert find_old_hits(process) == []


def test_an_interrupted_read_forgets_what_vouches() -> None:
    class Interrupted(BaseException):
        pass

    process, _ = begin()
    steps = read_through(process.context, [FIRST])
    next(steps)
    with pytest.raises(Interrupted):
        steps.throw(Interrupted())
    assert process.context.views == {}


def test_planted_a_view_that_outlives_its_connection_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadContext, "forget", lambda *_: None)
    for asks, at in (("get", 2), ("get_many", 2)):
        with pytest.raises(AssertionError):
            test_no_view_outlives_its_connection(asks, at)
    with pytest.raises(AssertionError):
        test_the_short_way_meets_the_failure_first()


def begin_with_copy() -> tuple[Process, Invalidator, LivingConnection]:
    """The resume copy knows the last change, too."""
    process, invalidator = begin()
    process.world.sleep(RESUME_SECONDS)
    process.world.commit()
    invalidator.apply()
    invalidator.client = connection = LivingConnection(process.world)
    return process, invalidator, connection


def replace_memory(process: Process, connection: LivingConnection, run: Run[None]) -> None:
    """Before the next request the node becomes the replica of an older one, and a primary again."""
    store = process.world.stores[NODE]
    store.restore(process.node.older)
    for gone in (record_key(NAMESPACE, LINEAGE), resume_key(NAMESPACE, LINEAGE)):
        store.evict(gone)
    connection.has_other_data = True
    with pytest.raises(NodeUnavailable):
        run.finish()


def test_no_life_is_revived_in_an_older_memory() -> None:
    process, invalidator, connection = begin_with_copy()
    process.world.sleep(L_SECONDS)
    run = invalidator.joining().until_kind(Add, key=record_key(NAMESPACE, LINEAGE))
    replace_memory(process, connection, run)
    invalidator.join().apply()
    process.world.sleep(NODE_REFRESH_SECONDS)
    assert ReadOutcome.HIT not in process.run(FIRST, SECOND)


def test_no_resume_copy_is_put_into_an_older_memory() -> None:
    process, invalidator, connection = begin_with_copy()
    process.world.sleep(RESUME_SECONDS)
    process.world.stores[NODE].evict(resume_key(NAMESPACE, LINEAGE))
    process.world.commit()
    run = invalidator.applying().until_kind(Add, key=resume_key(NAMESPACE, LINEAGE))
    replace_memory(process, connection, run)
    invalidator.join().apply()
    process.world.sleep(NODE_REFRESH_SECONDS)
    assert ReadOutcome.HIT not in process.run(FIRST, SECOND)


def test_planted_an_item_that_is_bound_to_any_data_revives_an_older_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LivingConnection, "_is_refused", lambda *_: False)
    with pytest.raises(AssertionError):
        test_no_life_is_revived_in_an_older_memory()
    with pytest.raises(AssertionError):
        test_no_resume_copy_is_put_into_an_older_memory()


def test_an_older_copy_with_its_record_is_sent_everything_again() -> None:
    """Restored into the same process of the node, with all keys and sooner than a lease ends: nothing shows that to a
    reader. An invalidator sees that the record lacks what it has published in this tenure."""
    process, invalidator = begin()
    process.world.stores[NODE].restore(process.node.older)
    process.world.commit()
    with pytest.raises(MembershipLost, match="older copy"):
        invalidator.apply()
    invalidator.join().apply()
    process.world.sleep(NODE_REFRESH_SECONDS)
    assert process.run(FIRST, SECOND) == [ReadOutcome.FILLED, ReadOutcome.FILLED]
