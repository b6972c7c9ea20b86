"""Entries follow the log: a row replaces what is there by a reader's rule, and in any doubt the entry is removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from freshness.algorithm.driver import drive
from freshness.algorithm.envelope import (
    CHUNK_BYTES_MAX,
    STUB,
    Coverage,
    Filled,
    NodeRecord,
    Stamp,
    Stripe,
    find_stripe,
    record_key,
    stripe_key,
    stripe_number,
)
from freshness.algorithm.invalidate import Target
from freshness.algorithm.lookup import Lookup
from freshness.algorithm.refill import LoggedRow, refill
from freshness.algorithm.request import (
    Add,
    Append,
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
from freshness.algorithm.rule import ObjectPolicy
from freshness.nodes.memory import MemoryStore
from freshness.position import MysqlGtidSet, Position
from freshness.position.token import EventToken

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
NAMESPACE, LINEAGE, NODE = "shop", "shop/-", "n1"
LIFE, PREVIOUS = b"LIFELIFE", b"PREVIOUS"
STRIPES, RING, FINGERPRINT, EPOCH, TTL = 16, 7, 99, 3, 1000
POLICY = ObjectPolicy("customer", FINGERPRINT, ("customers",), (LINEAGE,), TTL)
KEY = b"shop:customer:1"
OTHER = b"shop:customer:2"
STRIPE = stripe_key(NAMESPACE, LINEAGE, stripe_number(KEY, STRIPES))
RECORD = record_key(NAMESPACE, LINEAGE)


def at(numbers: str) -> Position:
    return MysqlGtidSet.parse(f"{SOURCE}:{numbers}")


TARGET = Target(NAMESPACE, LINEAGE, LIFE, STRIPES, at("1-10"))
OPEN = NodeRecord(
    LINEAGE, LIFE, b"TENURE..", True, EPOCH, RING, 0, 0, NODE, STRIPES, at("1-11"), at("1-10"),
    objects={"customer": Coverage(FINGERPRINT, at("1-10"))},
)  # fmt: skip


def row_of(key: bytes, payload: bytes | None = b"new", policy: ObjectPolicy = POLICY) -> LoggedRow:
    return LoggedRow(Lookup(policy, "", key, b"id " + key, ()), payload)


def entry(numbers: str, payload: bytes | None = b"old", key: bytes = KEY, **stamp: Any) -> bytes:
    return Filled(
        (replace(Stamp(LINEAGE, LIFE, EPOCH, at(numbers), at(numbers)), **stamp),), b"id " + key, payload
    ).encode()


@dataclass
class Scene:
    """One node, open, whose stripes lack the events that come now. ``before`` is called before each request."""

    before: Callable[[Request], object] = lambda _: None
    instead: Callable[[Request], Reply | None] = lambda _: None
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = MemoryStore(NODE, clock=lambda: 1000.0)
        self.put(RECORD, OPEN.encode())
        for key in (KEY, OTHER):
            self.put(stripe_key(NAMESPACE, LINEAGE, stripe_number(key, STRIPES)), Stripe(LIFE, at("11")).encode())
        self.put(KEY, entry("1-11"))

    def put(self, key: bytes, data: bytes) -> None:
        self.store.evict(key)
        assert isinstance(self.store.answer(Add(key, data, 0)), Stored)

    def value(self, key: bytes = KEY) -> bytes | None:
        item = self.store.peek(key)
        return None if item is None else item.value

    def answer(self, step: Step) -> Any:
        assert isinstance(step, Flow)
        assert step.node == NODE
        return [self._perform(request) for request in step.requests]

    def _perform(self, request: Request) -> Reply:
        self.before(request)
        self.requests.append(request)
        reply = self.instead(request)
        return self.store.answer(request) if reply is None else reply

    def refill(self, *rows: LoggedRow, event: str = "15", streamed: str = "1-20", **token: Any) -> list[int]:
        rows = rows or (row_of(KEY),)
        return list(
            drive(
                refill(
                    NODE,
                    {row.lookup.item: row for row in rows},
                    {row.lookup.item: at(event) for row in rows},
                    TARGET,
                    replace(EventToken(LINEAGE, LINEAGE, EPOCH, 0, at(streamed)), **token),
                    RING,
                    None,
                ),
                self.answer,
            )
        )

    def has_event(self) -> bool:
        item = self.store.peek(STRIPE)
        stripe = None if item is None else find_stripe(item.value, LIFE)
        return stripe is not None and stripe.position.contains(at("15"))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_row_takes_the_place_of_an_older_entry(scene: Scene) -> None:
    assert scene.refill() == [stripe_number(KEY, STRIPES)]
    assert scene.value() == entry("1-20", b"new")
    item = scene.store.peek(KEY)
    assert item is not None
    assert TTL * 0.9 <= item.ttl_seconds <= TTL
    assert scene.has_event()
    assert not any(isinstance(request, Delete) for request in scene.requests)


def test_a_row_that_is_gone_leaves_an_entry_that_says_so(scene: Scene) -> None:
    scene.refill(row_of(KEY, None))
    assert scene.value() == entry("1-20", None)


def test_a_row_is_stored_for_the_reader_who_left_a_stub(scene: Scene) -> None:
    scene.put(KEY, STUB)
    scene.refill()
    assert scene.value() == entry("1-20", b"new")


def test_a_key_that_nobody_reads_gets_no_entry(scene: Scene) -> None:
    scene.refill(row_of(KEY), row_of(OTHER))
    assert scene.value() == entry("1-20", b"new")
    assert scene.value(OTHER) is None


def test_the_event_is_in_the_stripe_before_the_item_is_read(scene: Scene) -> None:
    def check(request: Request) -> None:
        if request == Get(KEY):
            assert scene.has_event()

    scene.before = check
    scene.refill()


def test_the_item_is_read_before_its_stripe_and_the_record_is_the_last(scene: Scene) -> None:
    scene.refill()
    gets = [request.key for request in scene.requests if isinstance(request, Get)]
    assert gets == [KEY, STRIPE, RECORD]
    assert [request.is_bound for request in scene.requests if isinstance(request, Get)] == [False, False, True]


@pytest.mark.parametrize("number", ["15", "15-16"])
def test_an_entry_that_has_the_event_stays(scene: Scene, number: str) -> None:
    """Another invalidator, or a reader, was first, and may be ahead."""
    scene.put(KEY, entry(f"1-14:{number}:18"))
    scene.refill(streamed="1-16")
    assert scene.value() == entry(f"1-14:{number}:18")


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(entry("1-15", life=PREVIOUS), id="a previous life"),
        pytest.param(entry("1-15", epoch=EPOCH - 1), id="another history"),
        pytest.param(entry("1-15", lineage="shop/x"), id="another lineage"),
        pytest.param(entry("1-14:16"), id="all but the event"),
    ],
)
def test_an_entry_that_has_no_such_event_is_replaced(scene: Scene, held: bytes) -> None:
    scene.put(KEY, held)
    scene.refill()
    assert scene.value() == entry("1-20", b"new")


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda scene: scene.put(KEY, b"foreign"), id="foreign bytes"),
        pytest.param(lambda scene: scene.put(KEY, entry("1-11", key=OTHER)), id="another spelling"),
        pytest.param(
            lambda scene: scene.put(STRIPE, Stripe(LIFE, at("11:25")).encode()), id="another invalidator is ahead"
        ),
        pytest.param(lambda scene: scene.put(STRIPE, Stripe(PREVIOUS, at("11")).encode()), id="a previous stripe"),
        pytest.param(lambda scene: scene.store.evict(STRIPE), id="no stripe"),
        pytest.param(lambda scene: scene.store.evict(RECORD), id="no record"),
        pytest.param(lambda scene: scene.put(RECORD, replace(OPEN, is_open=False).encode()), id="closed"),
        pytest.param(lambda scene: scene.put(RECORD, replace(OPEN, life=PREVIOUS).encode()), id="a new life"),
        pytest.param(
            lambda scene: (
                scene.put(RECORD, replace(OPEN, life=PREVIOUS).encode()),
                scene.put(STRIPE, Stripe(PREVIOUS, at("11")).encode()),
            ),
            id="a new life and its stripe",
        ),
        pytest.param(lambda scene: scene.put(RECORD, replace(OPEN, epoch=4).encode()), id="a new history"),
        pytest.param(lambda scene: scene.put(RECORD, replace(OPEN, ring=8).encode()), id="a new ring"),
        pytest.param(lambda scene: scene.put(RECORD, replace(OPEN, objects={}).encode()), id="not covered"),
        pytest.param(
            lambda scene: scene.put(RECORD, replace(OPEN, table_floors={"customers": at("22")}).encode()),
            id="raised by another invalidator",
        ),
        pytest.param(lambda scene: scene.put(RECORD, replace(OPEN, floor=at("1-21")).encode()), id="floor"),
    ],
)
def test_in_doubt_the_entry_is_removed(scene: Scene, spoil: Callable[[Scene], object]) -> None:
    spoil(scene)
    scene.refill()
    assert scene.value() is None


def test_an_object_of_several_lineages_is_never_filled(scene: Scene) -> None:
    scene.refill(row_of(KEY, policy=replace(POLICY, lineages=(LINEAGE, "shop/x"))))
    assert scene.value() is None


def test_an_entry_that_changes_meanwhile_is_removed(scene: Scene) -> None:
    """Another invalidator may have put an older row there."""

    def change(request: Request) -> None:
        if isinstance(request, Cas):
            scene.put(KEY, entry("1-14", b"older"))

    scene.before = change
    scene.refill()
    assert scene.value() is None


def test_an_item_that_the_node_refuses_is_removed(scene: Scene) -> None:
    scene.instead = lambda request: Refused("too large") if isinstance(request, Cas) else None
    scene.refill()
    assert scene.value() is None


def test_a_refused_append_removes_stripe_and_entry(scene: Scene) -> None:
    refused = iter([True])

    def refuse(request: Request) -> Reply | None:
        is_first = isinstance(request, Append) and request.key == STRIPE and next(refused, False)
        return scene.store.answer(Get(b"absent")) if is_first else None

    scene.instead = refuse
    assert scene.refill() == []
    assert scene.value() is None


@pytest.mark.parametrize("start", ["1-9", "1-20"], ids=["no row may be stored", "the row could be stored"])
def test_a_position_too_long_for_a_chunk_removes_stripe_and_entry(scene: Scene, start: str) -> None:
    long = ":".join(str(number) for number in range(31, 2 * CHUNK_BYTES_MAX, 2))
    scene.refill(streamed=f"{start}:{long}")
    assert scene.value() is None
    assert scene.value(STRIPE) is None


def test_the_token_and_the_life_are_in_the_entry(scene: Scene) -> None:
    scene.refill()
    item = scene.store.peek(KEY)
    assert isinstance(item, Item)
    assert Filled.decode(item.value).stamps == (Stamp(LINEAGE, LIFE, EPOCH, at("1-20"), at("1-20")),)
