"""Shadow reads on a node in memory: the value that is served, and what a difference is called."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pytest

from appclient.database.atleast import enclosed_by
from appclient.reading.shadow import WAITS_SECONDS, ShadowReads
from freshness.algorithm.envelope import STUB, record_key
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.request import Delete, Get, Item
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.state import NO_DEMAND, Demand, Read, ServedState
from freshness.algorithm.view import NodeView
from freshness.errors import SourceUnavailable
from freshness.position.token import EventToken
from freshness.values.codec import encode_value
from tests.unit.freshness.comparison.world import CUSTOMER, LINEAGE, NODE, OLD, RING, World, at

NEW: Final = {"id": 1, "v": "new"}
KEY: Final = CUSTOMER.builder.build((1,))
LOOKUP: Final = Lookup(CUSTOMER.policy, NODE, KEY.item, CUSTOMER.identity(KEY), (1,), True)
LOGGED: Final = ("appclient.shadow", logging.ERROR)
ANSWER: Final = (("customer", 1),)


def token(sequence: int) -> EventToken:
    return EventToken(LINEAGE, "-", 1, 0, at(sequence))


class Bench:
    """A node with an entry of the old row, which has acknowledged up to 10, and a database with the new row."""

    def __init__(self) -> None:
        self.world = World()
        self.world.fill(OLD)
        self.hit = Read(ReadOutcome.HIT, encode_value(OLD))
        self.rows: list[Any] = [NEW]
        self.asked: list[Mapping[str, EventToken]] = []
        self.head = 10
        self.drawn = 0.0
        self.results: list[str] = []
        self.waits = 0
        self.while_waiting: Callable[[], object] = lambda: None

    def get(self, *, share: float = 1.0, demand: Demand = NO_DEMAND) -> Read:
        shadow = ShadowReads(
            share=share,
            load=self._load,
            find_heads=lambda _: {LINEAGE: token(self.head)},
            look=self._look,
            sleep=self._sleep,
            draw=lambda: self.drawn,
            tell=lambda lookup, result: self.results.append(result),
        )
        [read] = shadow.shadowing(lambda lookups, demand, connection: [self.hit])([LOOKUP], demand, None)
        return read

    def _load(self, lookups: Sequence[Lookup], at_least: Mapping[str, EventToken]) -> list[Loaded]:
        self.asked.append(at_least)
        row = self.rows.pop(0) if len(self.rows) > 1 else self.rows[0]
        if isinstance(row, Exception):
            raise row
        return [Loaded(row, {LINEAGE: token(7)}, None)]

    def _look(self, lookup: Lookup) -> tuple[NodeView, bytes | None]:
        record, item = self.world.node.perform([Get(record_key("shop", LINEAGE), is_bound=True), Get(lookup.item)])
        return NodeView(NODE, (LINEAGE,), [record], 0.0, RING), item.value if isinstance(item, Item) else None

    def _sleep(self, _: float) -> None:
        self.waits += 1
        self.while_waiting()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_database_is_served_and_the_hit_compared(bench: Bench) -> None:
    bench.rows = [OLD]
    asked = Demand(at_least={LINEAGE: token(3)})
    read = bench.get(demand=asked)
    assert (read.outcome, read.payload, read.value) == (ReadOutcome.HIT, None, OLD)
    assert read.tokens == {LINEAGE: token(7)}
    assert (bench.asked, bench.results, bench.waits) == ([asked.at_least], ["equal"], 0)


def test_no_row_equals_no_row(bench: Bench) -> None:
    bench.hit = Read(ReadOutcome.HIT, None)
    bench.rows = [None]
    assert bench.get().value is None
    assert bench.results == ["equal"]


def test_only_the_share_of_hits_is_compared(bench: Bench) -> None:
    bench.drawn = 0.05
    assert bench.get(share=0.05) is bench.hit
    bench.hit = Read(ReadOutcome.FILLED, value=OLD)
    assert bench.get() is bench.hit
    assert (bench.asked, bench.results) == ([], [])


def test_parts_of_a_value_are_not_compared(bench: Bench) -> None:
    with enclosed_by(LINEAGE, token(3)):
        assert bench.get() is bench.hit
    assert bench.results == []


def test_values_of_one_state_are_not_torn(bench: Bench) -> None:
    """Another read is of another moment."""
    assert bench.get(demand=Demand(served=ServedState())) is bench.hit
    assert bench.results == []


def test_a_difference_that_nothing_explains(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    assert bench.get().value == NEW
    assert bench.results == ["differs"]
    assert bench.asked == [{}, {LINEAGE: token(10)}], "read again, at the head"
    [line] = [each.getMessage() for each in caplog.records if (each.name, each.levelno) == LOGGED]
    assert "shop:customer:1" in line
    assert "new" not in line
    assert "old" not in line


def test_a_replica_that_lags_is_lag(bench: Bench) -> None:
    bench.rows = [{"id": 1, "v": "older"}, OLD]
    assert bench.get().value == {"id": 1, "v": "older"}, "as a miss would be answered"
    assert bench.results == ["lag"]


@pytest.mark.parametrize(
    "change",
    [
        lambda world: world.node.perform([Delete(KEY.item)]),
        lambda world: world.put(KEY.item, STUB),
        lambda world: world.fill(NEW),
        lambda world: world.fill(OLD, position=at(6)),
        lambda world: world.record(11, life=b"ANOTHER."),
        lambda world: world.record(11, is_open=False),
        lambda world: world.record(11, table_floors={"customers": at(11)}),
    ],
)
@pytest.mark.parametrize("is_before", [True, False])
def test_an_entry_that_went_or_changed_is_lag(bench: Bench, change: Callable[[World], None], is_before: bool) -> None:
    """Before the first look an entry of the same value is the same for it."""
    bench.head = 11
    if is_before:
        change(bench.world)
        bench.while_waiting = lambda: bench.world.node.perform([Delete(KEY.item)])
    else:
        bench.while_waiting = lambda: change(bench.world)
    bench.get()
    assert bench.results == ["lag"]


def test_an_invalidation_that_is_not_acknowledged_is_undecided(bench: Bench) -> None:
    bench.head = 11
    bench.get()
    assert (bench.results, bench.waits) == (["undecided"], len(WAITS_SECONDS))


def test_a_late_acknowledgement_without_the_invalidation_differs(bench: Bench) -> None:
    bench.head = 11
    bench.while_waiting = lambda: bench.world.record(11) if bench.waits == 3 else None
    bench.get()
    assert (bench.results, bench.waits) == (["differs"], 3)


def test_the_second_head_is_that_of_after_the_second_read(bench: Bench) -> None:
    """A change between the first head and the second read is on its way: the first head does not name it."""
    load = bench._load

    def commit_and_load(lookups: Sequence[Lookup], at_least: Mapping[str, EventToken]) -> list[Loaded]:
        bench.head = 10 + len(bench.asked)
        return load(lookups, at_least)

    bench._load = commit_and_load  # type: ignore[method-assign]
    bench.get()
    assert bench.asked[1] == {LINEAGE: token(10)}
    assert bench.results == ["undecided"]


def test_silence_is_undecided_and_a_failure_serves_the_hit(bench: Bench) -> None:
    bench.world.store.down = True
    assert bench.get().value == NEW
    bench.world.store.down = False
    bench.rows = [NEW, SourceUnavailable("down", hint="start it")]
    assert bench.get().value == NEW
    bench.rows = [ValueError("the loader's own")]
    assert bench.get() is bench.hit
    assert bench.results == ["undecided", "undecided", "failed"]


def test_a_value_that_does_not_decode_is_left_to_the_cache(bench: Bench) -> None:
    bench.hit = Read(ReadOutcome.HIT, b"\xff\xff")
    assert bench.get() is bench.hit
    assert bench.results == []
