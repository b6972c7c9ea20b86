"""Keys are invalidated: the stripes first, the entries after them, and stripes that are absent stay so."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshness.algorithm import invalidate as invalidating
from freshness.algorithm.driver import drive
from freshness.algorithm.envelope import (
    CHUNK_BYTES_MAX,
    STUB,
    NodeRecord,
    PendingStripe,
    Stripe,
    decode_wanted,
    encode_chunk,
    find_stripe,
    stripe_key,
    stripe_number,
    wanted_key,
)
from freshness.algorithm.invalidate import SHORTEN_SHARE, Target, invalidate, shorten
from freshness.algorithm.request import (
    CONFLICT,
    STORED,
    Add,
    Append,
    Cas,
    Delete,
    Flow,
    Get,
    Reply,
    Request,
    Step,
    Stored,
    Strikes,
)
from freshness.errors import FlavorMismatch, FormatError, NodeUnavailable
from freshness.nodes.memory import MemoryStore
from freshness.position import MariadbPosition, MysqlGtidSet, Position

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
NAMESPACE, LINEAGE, NODE = "shop", "shop/-", "n1"
LIFE, PREVIOUS = b"LIFELIFE", b"PREVIOUS"
STRIPES = 16
KEYS = tuple(b"shop:customer:%d" % number for number in range(6))
WANTED = wanted_key(NAMESPACE, LINEAGE)


def at(numbers: str) -> Position:
    return MysqlGtidSet.parse(f"{SOURCE}:{numbers}")


TARGET = Target(NAMESPACE, LINEAGE, LIFE, STRIPES, at("1-10"))
TOO_LONG = at(":".join(str(number) for number in range(11, 2 * CHUNK_BYTES_MAX, 2)))


def number_of(key: bytes) -> int:
    return stripe_number(key, STRIPES)


def stripe_of(key: bytes) -> bytes:
    return stripe_key(NAMESPACE, LINEAGE, number_of(key))


NUMBERS = {number_of(key) for key in KEYS}


@dataclass
class Scene:
    """One node. ``instead`` may answer a request; ``before`` is called before each."""

    before: Callable[[Request], object] = lambda _: None
    instead: Callable[[Request], Reply | None] = lambda _: None
    flows: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = MemoryStore(NODE, clock=lambda: 1000.0)
        self.put(WANTED, STUB)

    def put(self, key: bytes, data: bytes) -> None:
        self.store.evict(key)
        assert isinstance(self.store.answer(Add(key, data, 0)), Stored)

    def put_stripes(self, keys: Collection[bytes] = KEYS, numbers: str = "11", life: bytes = LIFE) -> None:
        for key in keys:
            self.put(stripe_of(key), Stripe(life, at(numbers)).encode())

    def fill(self) -> None:
        for key in KEYS:
            self.put(key, b"an entry")

    def answer(self, step: Step) -> Any:
        assert isinstance(step, Flow)
        assert step.node == NODE
        self.flows.append(step.requests)
        return [self._perform(request) for request in step.requests]

    def _perform(self, request: Request) -> Reply:
        self.before(request)
        reply = self.instead(request)
        return self.store.answer(request) if reply is None else reply

    def invalidate(
        self, keys: Collection[bytes] = KEYS, streamed: Position | None = None, target: Target = TARGET
    ) -> set[int]:
        numbers = list(drive(invalidate(NODE, keys, target, streamed or at("1-20")), self.answer))
        assert len(numbers) == len(set(numbers))
        return set(numbers)

    def shorten(self, numbers: Collection[int], streamed: Position, target: Target = TARGET) -> None:
        drive(shorten(NODE, list(numbers), target, streamed), self.answer)

    def value(self, key: bytes) -> bytes | None:
        item = self.store.peek(key)
        return None if item is None else item.value

    def stripe(self, key: bytes, life: bytes = LIFE) -> Stripe | None:
        value = self.value(stripe_of(key))
        return None if value is None else find_stripe(value, life)

    def wanted(self) -> list[int]:
        return decode_wanted(self.value(WANTED) or b"")


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.fill()
    return scene


# -- strikes -------------------------------------------------------------------------------------------


def test_strikes_are_an_ordinary_sequence() -> None:
    strikes = Strikes([b"s1", b"s2"], b"chunk", [b"k1"])
    requests = [Append(b"s1", b"chunk"), Append(b"s2", b"chunk"), Delete(b"k1")]
    assert list(strikes) == requests
    assert len(strikes) == 3
    assert strikes[-1] == requests[-1]
    assert strikes[1:] == requests[1:]
    assert strikes[::-1] == requests[::-1]
    with pytest.raises(IndexError):
        strikes[3]
    assert repr(strikes) == "Strikes of 2 stripes and 1 keys"


def test_a_target_is_of_a_record() -> None:
    nothing = MysqlGtidSet()
    record = NodeRecord(LINEAGE, LIFE, b"TENURE..", True, 1, 7, 0, 0, NODE, STRIPES, nothing, at("1-10"))
    assert Target.of(NAMESPACE, record) == TARGET


# -- stripes that are there ----------------------------------------------------------------------------


def test_stripes_are_appended_to_and_then_entries_deleted_in_one_flow(scene: Scene) -> None:
    scene.put_stripes()
    assert scene.invalidate() == NUMBERS
    (flow,) = scene.flows
    assert isinstance(flow, Strikes)
    assert {request.key for request in flow[: len(NUMBERS)]} == {stripe_of(key) for key in KEYS}
    assert flow[len(NUMBERS) :] == [Delete(key) for key in KEYS]
    for key in KEYS:
        assert scene.value(key) is None
        assert scene.stripe(key) == Stripe(LIFE, at("11-20"), 2)
    assert scene.wanted() == []


def test_a_chunk_has_all_that_was_streamed_but_the_floor(scene: Scene) -> None:
    scene.put_stripes()
    scene.invalidate(streamed=at("1-12:15"))
    assert scene.flows[0].chunk == encode_chunk(LIFE, at("11-12:15"))


def test_a_stripe_of_another_life_is_appended_to_and_stays_what_it_is(scene: Scene) -> None:
    """Whether it is refused by the reader, who knows the life; the restorer replaces it."""
    scene.put_stripes(life=PREVIOUS)
    assert scene.invalidate() == NUMBERS
    assert scene.stripe(KEYS[0], PREVIOUS) == Stripe(PREVIOUS, at("11"), 2)
    assert scene.stripe(KEYS[0]) is None


def test_a_pending_stripe_is_appended_to(scene: Scene) -> None:
    scene.put_stripes()
    scene.put(stripe_of(KEYS[0]), PendingStripe(b"NONCE...").encode())
    assert scene.invalidate() == NUMBERS
    held = scene.value(stripe_of(KEYS[0]))
    assert held is not None
    assert PendingStripe.decode(held) == PendingStripe(b"NONCE...", ((LIFE, at("11-20")),))


def test_no_key_is_no_harm(scene: Scene) -> None:
    assert scene.invalidate(()) == set()
    assert scene.wanted() == []


def test_another_flavor_than_the_nodes_is_refused(scene: Scene) -> None:
    with pytest.raises(FlavorMismatch):
        scene.invalidate(streamed=MariadbPosition.of(0, 1, 5))
    assert scene.flows == []


# -- stripes that are absent ---------------------------------------------------------------------------


def test_where_the_stripe_is_absent_the_keys_are_deleted_and_the_stripe_is_wanted(scene: Scene) -> None:
    here = [key for key in KEYS if number_of(key) != number_of(KEYS[0])]
    gone = [key for key in KEYS if key not in here]
    scene.put_stripes(here)
    assert scene.invalidate() == NUMBERS - {number_of(KEYS[0])}
    assert [scene.value(key) for key in KEYS] == [None] * len(KEYS)
    assert scene.stripe(KEYS[0]) is None
    assert scene.wanted() == [number_of(KEYS[0])]
    first, second = scene.flows
    assert isinstance(first, Strikes)
    assert list(second[:-1]) == [Delete(stripe_of(KEYS[0])), *(Delete(key) for key in gone)]


def test_a_stripe_that_comes_back_behind_the_append_is_deleted_before_the_keys(scene: Scene) -> None:
    """The node refused the append for lack of memory, or another put the stripe back: it may lack the event."""
    order: list[Request] = []

    def come_back(request: Request) -> None:
        if len(scene.flows) == 1 and isinstance(request, Delete) and request.key == KEYS[0]:
            scene.put_stripes([KEYS[0]])
            scene.put(KEYS[0], b"an entry without the event")
        if len(scene.flows) == 2:
            order.append(request)

    scene.before = come_back
    scene.put_stripes([key for key in KEYS if number_of(key) != number_of(KEYS[0])])
    scene.invalidate()
    assert scene.value(KEYS[0]) is None
    assert scene.stripe(KEYS[0]) is None
    assert [request.key for request in order[:2]] == [stripe_of(KEYS[0]), KEYS[0]]


def test_a_refused_append_counts_as_absent(scene: Scene) -> None:
    """memcached without memory says so of a run of appends, and not of which: all of them are absent then."""
    scene.put_stripes()
    scene.instead = lambda request: CONFLICT if isinstance(request, Append) else None
    assert scene.invalidate() == set()
    for key in KEYS:
        assert scene.value(key) is None
        assert scene.value(stripe_of(key)) is None


def test_a_list_of_wanted_stripes_that_is_not_there_is_no_harm(scene: Scene) -> None:
    scene.store.evict(WANTED)
    assert scene.invalidate() == set()
    assert scene.value(WANTED) is None


def test_so_many_are_wanted_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invalidating, "WANTED_MAX", 2)
    scene.invalidate()
    assert len(scene.wanted()) == 2
    assert set(scene.wanted()) <= NUMBERS


def test_a_position_that_is_too_long_deletes_stripes_and_keys(scene: Scene) -> None:
    scene.put_stripes()
    assert scene.invalidate(streamed=TOO_LONG) == set()
    for key in KEYS:
        assert scene.value(key) is None
        assert scene.value(stripe_of(key)) is None
    assert set(scene.wanted()) == NUMBERS
    (flow,) = scene.flows
    assert [type(request) for request in flow] == [Delete] * (len(NUMBERS) + len(KEYS)) + [Append]


def test_the_longest_position_that_is_appended_is_read_back(scene: Scene) -> None:
    scene.put_stripes()
    numbers = [str(number) for number in range(11, 2 * CHUNK_BYTES_MAX, 2)]
    count = bisect_right(
        range(len(numbers)),
        CHUNK_BYTES_MAX,
        lo=1,
        key=lambda count: len(encode_chunk(LIFE, at(":".join(numbers[:count])))),
    )
    longest = at(":".join(numbers[: count - 1]))
    assert CHUNK_BYTES_MAX - 5 <= len(encode_chunk(LIFE, longest)) <= CHUNK_BYTES_MAX
    assert scene.invalidate(streamed=longest) == NUMBERS
    assert scene.stripe(KEYS[0]) == Stripe(LIFE, at("11").union(longest), 2)


@pytest.mark.parametrize("place", range(2 * len(KEYS)))
def test_without_an_answer_nothing_counts_and_sending_again_is_enough(place: int) -> None:
    scene = Scene()
    scene.fill()
    scene.put_stripes(KEYS[:3])
    left = [place]

    def break_off(_: Request) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise NodeUnavailable("the connection broke")

    scene.before = break_off
    with pytest.raises(NodeUnavailable):
        scene.invalidate()
    scene.before = lambda _: None
    scene.invalidate()
    for key in KEYS:
        assert scene.value(key) is None
        stripe = scene.stripe(key)
        assert stripe is None or stripe.position.contains(at("11-20"))


# -- many keys, and others in between ------------------------------------------------------------------

OTHERS: tuple[Callable[[Scene, bytes], object], ...] = (
    lambda scene, key: scene.store.evict(stripe_of(key)),
    lambda scene, key: scene.put(key, b"an entry"),
    lambda scene, key: scene.put(stripe_of(key), PendingStripe(b"NONCE...").encode()),
    lambda scene, key: scene.put_stripes([key], life=PREVIOUS),
    lambda scene, key: scene.store.answer(Append(stripe_of(key), encode_chunk(LIFE, at("33")))),
    lambda scene, key: scene.put(stripe_of(key), b"foreign"),
)
intrusions = st.dictionaries(st.integers(0, 40), st.tuples(st.sampled_from(OTHERS), st.sampled_from(KEYS)))


@given(st.sets(st.sampled_from(KEYS), min_size=1), st.sets(st.sampled_from(KEYS)), intrusions)
@settings(max_examples=300)
def test_a_whole_stripe_that_stood_throughout_has_the_event_and_every_entry_is_gone(
    keys: set[bytes], here: set[bytes], intruders: dict[int, tuple[Callable[[Scene, bytes], object], bytes]]
) -> None:
    """Whatever others do in between: after the append, no entry from before it is left behind its stripe."""
    scene = Scene()
    scene.fill()
    scene.put_stripes(here)
    count = 0
    touched: set[bytes] = set()

    def intrude(_: Request) -> None:
        nonlocal count
        if count in intruders:
            act, key = intruders[count]
            act(scene, key)
            touched.update(other for other in KEYS if number_of(other) == number_of(key))
        count += 1

    scene.before = intrude
    numbers = scene.invalidate(keys)
    assert numbers <= {number_of(key) for key in keys}
    for key in keys - touched:
        assert scene.value(key) is None
        stripe = scene.stripe(key)
        assert (number_of(key) in numbers) == (stripe is not None)
        assert stripe is None or stripe.position == at("11-20")
    for key in set(KEYS) - keys - touched:
        assert scene.value(key) == b"an entry"


# -- shortening ----------------------------------------------------------------------------------------


def streamed_for(number: int) -> Position:
    """A batch whose turn it is to shorten that stripe."""
    return next(
        position
        for position in (at(f"1-{last}") for last in range(20, 1000))
        if crc32(position.encode()) % SHORTEN_SHARE == number % SHORTEN_SHARE
    )


def append(scene: Scene, key: bytes, *chunks: tuple[bytes, str]) -> None:
    for life, numbers in chunks:
        assert scene.store.answer(Append(stripe_of(key), encode_chunk(life, at(numbers)))) == STORED


KEY, NUMBER = KEYS[0], number_of(KEYS[0])
BATCH = streamed_for(NUMBER)


def test_a_stripe_is_shortened_to_one_chunk_of_its_life(scene: Scene) -> None:
    """Another invalidator is ahead, so that it has more than was streamed here."""
    scene.put_stripes()
    append(scene, KEY, (LIFE, "13"), (PREVIOUS, "5000"), (LIFE, "11-20:3000"))
    scene.shorten([NUMBER], BATCH)
    assert scene.stripe(KEY) == Stripe(LIFE, at("11-20:3000"), 1)
    item = scene.store.peek(stripe_of(KEY))
    assert item is not None
    assert item.ttl_seconds == -1


def test_a_stripe_within_what_was_streamed_becomes_that(scene: Scene) -> None:
    """It is not decoded for it. Chunks of another life are left out, whatever they hold."""
    scene.put_stripes()
    append(scene, KEY, (LIFE, "13"), (PREVIOUS, "5000"), (LIFE, "15-16"))
    scene.shorten([NUMBER], BATCH)
    assert scene.stripe(KEY) == Stripe(LIFE, BATCH.subtract(TARGET.floor), 1)


def test_about_every_sixteenth_batch_shortens_a_stripe(scene: Scene) -> None:
    scene.put_stripes()
    shortened = 0
    for last in range(20, 420):
        append(scene, KEY, (LIFE, str(last)))
        scene.shorten([NUMBER], at(f"1-{last}"))
        stripe = scene.stripe(KEY)
        assert stripe is not None
        assert stripe.chunk_count < 20 * SHORTEN_SHARE, "else it would grow without bound"
        shortened += stripe.chunk_count == 1
    assert 400 / SHORTEN_SHARE / 2 < shortened < 400 / SHORTEN_SHARE * 2


def test_those_whose_turn_it_is_are_shortened_in_two_flows(scene: Scene) -> None:
    numbers = range(4 * SHORTEN_SHARE)
    target = Target(NAMESPACE, LINEAGE, LIFE, len(numbers), at("1-10"))
    for number in numbers:
        scene.put(
            stripe_key(NAMESPACE, LINEAGE, number), Stripe(LIFE, at("11")).encode() + encode_chunk(LIFE, at("12"))
        )
    scene.shorten(numbers, BATCH, target)
    turn = [stripe_key(NAMESPACE, LINEAGE, n) for n in numbers if n % SHORTEN_SHARE == NUMBER % SHORTEN_SHARE]
    assert len(turn) == 4
    assert [[request.key for request in flow] for flow in scene.flows] == [turn, turn]
    assert all(isinstance(request, Get) for request in scene.flows[0])
    assert all(isinstance(request, Cas) for request in scene.flows[1])


def test_where_it_is_nobodys_turn_nothing_is_asked(scene: Scene) -> None:
    scene.put_stripes()
    scene.shorten([NUMBER + 1], BATCH)
    scene.shorten([], BATCH)
    assert scene.flows == []


@pytest.mark.parametrize(
    "data",
    [
        Stripe(LIFE, at("11")).encode(),
        Stripe(PREVIOUS, at("11")).encode() + encode_chunk(PREVIOUS, at("12")),
        PendingStripe(b"NONCE...").encode() + encode_chunk(LIFE, at("12")),
        b"foreign",
        None,
    ],
    ids=["one chunk", "previous life", "pending", "foreign", "absent"],
)
def test_all_else_is_left_as_it_is(scene: Scene, data: bytes | None) -> None:
    if data is not None:
        scene.put(stripe_of(KEY), data)
    before = scene.store.peek(stripe_of(KEY))
    scene.shorten([NUMBER], BATCH)
    assert scene.store.peek(stripe_of(KEY)) == before
    assert len(scene.flows) == 1


def test_what_is_appended_while_a_stripe_is_shortened_is_kept(scene: Scene) -> None:
    scene.put_stripes()
    append(scene, KEY, (LIFE, "13"))

    def intrude(request: Request) -> None:
        if isinstance(request, Cas):
            append(scene, KEY, (LIFE, "99"))

    scene.before = intrude
    scene.shorten([NUMBER], BATCH)
    assert scene.stripe(KEY) == Stripe(LIFE, at("11:13:99"), 3)


def test_a_stripe_that_is_too_long_even_in_one_chunk_is_deleted(scene: Scene) -> None:
    scene.put_stripes()
    odd = [str(number) for number in range(101, 101 + CHUNK_BYTES_MAX, 2)]
    for start in range(0, len(odd), 256):
        append(scene, KEY, (LIFE, ":".join(odd[start : start + 256])))
    scene.shorten([NUMBER], BATCH)
    assert scene.value(stripe_of(KEY)) is None


def test_a_chunk_that_does_not_parse_makes_the_stripe_nobodys() -> None:
    """It is absent to readers, and replaced by the restorer."""
    data = Stripe(LIFE, at("11")).encode() + b"\0\3abc"
    with pytest.raises(FormatError):
        Stripe.decode(data)
    assert find_stripe(data, LIFE) is None
