"""Many keys together are what each of them is alone: the same requests, answers and remains, whoever comes in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshness.algorithm.driver import drive
from freshness.algorithm.envelope import Tombstone
from freshness.algorithm.invalidate import CAS_ATTEMPTS_MAX, Event, invalidate
from freshness.algorithm.request import (
    Add,
    Cas,
    Delete,
    Flow,
    Get,
    Item,
    Refused,
    Reply,
    Request,
    Step,
    Stored,
)
from freshness.errors import FreshnessError, InvalidationFailed
from freshness.keys.cachekey import tombstone_key
from freshness.nodes.memory import MemoryStore
from freshness.position import MysqlGtidSet, Position
from tests.schedules.world import D_SECONDS, LINEAGE, NODE, SOURCE

KEYS = tuple(b"shop:customer:%d" % number for number in range(4))
NOW = 1000.0
REQUESTS_MAX = 12
"""Of one key, up to which others come between."""

Intrusion = Callable[[MemoryStore, bytes], None]


def up_to(number: int) -> Position:
    return MysqlGtidSet.parse(f"{SOURCE}:1-{number}")


def event(number: int, *, epoch: int = 2) -> Event:
    return Event(LINEAGE, epoch, MysqlGtidSet.of(SOURCE, number), up_to(number))


def store_tombstone(number: int, lineage: str = LINEAGE, epoch: int = 2, ttl_seconds: int = 50) -> Intrusion:
    data = Tombstone.of(lineage, epoch, MysqlGtidSet.of(SOURCE, number)).encode()

    def intrude(store: MemoryStore, key: bytes) -> None:
        store.evict(tombstone_key(key))
        store.answer(Add(tombstone_key(key), data, ttl_seconds))

    return intrude


def lose_tombstone(store: MemoryStore, key: bytes) -> None:
    store.evict(tombstone_key(key))


def store_foreign_bytes(store: MemoryStore, key: bytes) -> None:
    lose_tombstone(store, key)
    store.answer(Add(tombstone_key(key), b"not ours", 500))


def fill(store: MemoryStore, key: bytes) -> None:
    store.answer(Add(key, b"a value", 60))


def do_nothing(store: MemoryStore, key: bytes) -> None:
    pass


INTRUSIONS: tuple[Intrusion, ...] = (
    do_nothing,
    lose_tombstone,
    store_foreign_bytes,
    fill,
    store_tombstone(3),
    store_tombstone(10),
    store_tombstone(99, ttl_seconds=400),
    store_tombstone(7, epoch=1),
    store_tombstone(7, lineage="shop/other"),
)


@dataclass(slots=True)
class _Observed:
    """A node, on which others do something to a key before its n-th request, and what each key saw."""

    store: MemoryStore
    plan: Mapping[bytes, Sequence[Intrusion]]
    seen: dict[bytes, list[tuple[Request, Reply]]]

    @classmethod
    def create(cls, plan: Mapping[bytes, Sequence[Intrusion]]) -> _Observed:
        return cls(MemoryStore(NODE, clock=lambda: NOW), plan, {key: [] for key in plan})

    def __call__(self, step: Step) -> Any:
        assert isinstance(step, Flow)
        return [self._answer(request) for request in step.requests]

    def _answer(self, request: Request) -> Reply:
        key = getattr(request, "key").removesuffix(b"!")  # noqa: B009 - every request here has a key
        seen, plan = self.seen[key], self.plan[key]
        if len(seen) < len(plan):
            plan[len(seen)](self.store, key)
        reply = self.store.answer(request)
        seen.append((request, reply))
        return reply

    def remains(self, key: bytes) -> list[tuple[bytes, int] | None]:
        held = [self.store.peek(name) for name in (key, tombstone_key(key))]
        return [None if item is None else (item.value, item.ttl_seconds) for item in held]


def without_versions(seen: Sequence[tuple[Request, Reply]]) -> list[tuple[Request, Reply, bool]]:
    """The version of a `Cas` told by whether it is the one that was read last: others' stores count too."""
    told = []
    read = 0
    for request, reply in seen:
        is_as_read = True
        if isinstance(request, Cas):
            is_as_read = request.version == read
            request = replace(request, version=0)
        if isinstance(reply, Item):
            read = reply.version
            reply = replace(reply, version=0)
        told.append((request, Stored() if isinstance(reply, Stored) else reply, is_as_read))
    return told


def run(node: _Observed, events: Mapping[bytes, Event], *, expects_tombstones: bool = False) -> str:
    try:
        drive(invalidate(NODE, events, D_SECONDS, expects_tombstones=expects_tombstones), node)
    except InvalidationFailed as error:
        return type(error).__name__
    return ""


plans = st.fixed_dictionaries(
    {key: st.lists(st.sampled_from(INTRUSIONS), max_size=REQUESTS_MAX) for key in KEYS}
)
wanted = st.fixed_dictionaries(
    {key: st.sampled_from((event(3), event(10), event(12), event(40, epoch=3))) for key in KEYS}
)


@given(plan=plans, events=wanted, expects=st.booleans())
@settings(max_examples=400, deadline=None)
def test_keys_together_take_the_steps_that_each_takes_alone(
    plan: Mapping[bytes, Sequence[Intrusion]], events: Mapping[bytes, Event], *, expects: bool
) -> None:
    together = _Observed.create(plan)
    assert run(together, events, expects_tombstones=expects) == ""
    for key, alone_event in events.items():
        alone = _Observed.create({key: plan[key]})
        assert run(alone, {key: alone_event}, expects_tombstones=expects) == ""
        assert without_versions(together.seen[key]) == without_versions(alone.seen[key])
        assert together.remains(key) == alone.remains(key)
        if len(alone.seen[key]) > len(plan[key]):  # nobody came behind the store
            _require_event(alone.remains(key)[1], alone_event)


def _require_event(tombstone: tuple[bytes, int] | None, wanted: Event) -> None:
    """Nobody without the event may fill, for at least D: it is in the tombstone, or nobody can read that."""
    assert tombstone is not None
    data, ttl_seconds = tombstone
    assert ttl_seconds >= D_SECONDS
    if data == b"not ours":
        return
    decoded = Tombstone.decode(data)
    assert [epoch for lineage, epoch in decoded.positions if lineage == LINEAGE] == [wanted.epoch]
    assert decoded.contains(LINEAGE, wanted.epoch, wanted.position)


def test_a_race_that_is_always_lost_fails_the_batch() -> None:
    """The other keys are done, and the loser is named; the number of its attempts is what it would be alone."""
    lost, done = KEYS[:2]
    # Before each Get and again before each Cas somebody replaces it: add, delete, get, cas, delete.
    plan = {lost: [store_tombstone(99)] * 5 * CAS_ATTEMPTS_MAX, done: []}
    together, alone = _Observed.create(plan), _Observed.create({lost: plan[lost]})
    with pytest.raises(InvalidationFailed, match="shop:customer:0"):
        drive(invalidate(NODE, {lost: event(3), done: event(3)}, D_SECONDS), together)
    assert run(alone, {lost: event(3)}) == "InvalidationFailed"
    assert without_versions(together.seen[lost]) == without_versions(alone.seen[lost])
    assert len(together.seen[lost]) == 5 * CAS_ATTEMPTS_MAX
    assert isinstance(together.seen[done][0][0], Add)
    assert len(together.seen[done]) == 2


def test_a_refused_tombstone_fails_the_batch() -> None:
    node = _Observed.create({key: [store_tombstone(99)] for key in KEYS})

    def refuse(step: Step) -> Any:
        replies = node(step)
        assert isinstance(step, Flow)
        return [
            Refused("out of memory")
            if isinstance(request, Cas) and request.key.startswith(KEYS[2])
            else reply
            for request, reply in zip(step.requests, replies, strict=True)
        ]

    with pytest.raises(FreshnessError, match="refused the tombstone of b'shop:customer:2'"):
        drive(invalidate(NODE, {key: event(3) for key in KEYS}, D_SECONDS), refuse)


def test_nothing_is_read_where_no_tombstone_stands() -> None:
    node = _Observed.create({key: [] for key in KEYS})
    steps: list[Step] = []

    def answer(step: Step) -> Any:
        steps.append(step)
        return node(step)

    drive(invalidate(NODE, {key: event(3) for key in KEYS}, D_SECONDS), answer)
    assert len(steps) == 1
    drive(invalidate(NODE, {key: event(4) for key in KEYS}, D_SECONDS), answer)
    # once more: the add that finds one, one read and one write for all
    assert len(steps) == 4
    assert isinstance(steps[2], Flow)
    assert all(isinstance(request, Get) for request in steps[2].requests)


def test_where_tombstones_are_expected_they_are_read_at_once() -> None:
    """The same end by another way, and the right number, whether the guess was right or not."""
    node = _Observed.create({key: [] for key in KEYS})
    first, others = {KEYS[0]: event(3)}, {key: event(4) for key in KEYS}
    steps: list[Step] = []

    def answer(step: Step) -> Any:
        steps.append(step)
        return node(step)

    assert drive(invalidate(NODE, first, D_SECONDS, expects_tombstones=True), answer) == 0
    assert [_kinds(step) for step in steps] == [{Get}, {Add, Delete}]
    steps.clear()
    assert drive(invalidate(NODE, others, D_SECONDS), answer) == 1
    assert drive(invalidate(NODE, others, D_SECONDS, expects_tombstones=True), answer) == len(KEYS)
    assert [_kinds(step) for step in steps[3:]] == [{Get}, {Cas, Delete}]
    for key in KEYS:
        _require_event(node.remains(key)[1], event(4))


def _kinds(step: Step) -> set[type]:
    assert isinstance(step, Flow)
    return {type(request) for request in step.requests}
