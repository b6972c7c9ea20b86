"""How missing stripes are put back: step by step, against whatever comes between two steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from freshness.algorithm import restore
from freshness.algorithm.driver import drive
from freshness.algorithm.envelope import (
    CHUNK_BYTES_MAX,
    STUB,
    NodeRecord,
    PendingStripe,
    Stripe,
    encode_chunk,
    encode_wanted,
    find_stripe,
    record_key,
    stripe_key,
    wanted_key,
)
from freshness.algorithm.invalidate import Target, invalidate
from freshness.algorithm.membership import NodePolicy
from freshness.algorithm.request import (
    MISSING,
    Add,
    Append,
    Cas,
    Flow,
    Flows,
    Get,
    Item,
    ReadStream,
    Reply,
    Request,
    Step,
    Stored,
    Streamed,
    Wait,
)
from freshness.algorithm.restore import (
    CAS_ATTEMPTS_MAX,
    DOUBT_SECONDS,
    LOOK_SECONDS,
    PENDING_MORE_SECONDS,
    REST_SECONDS,
    SWEEP_SECONDS,
    WANTED_SECONDS,
    Restorer,
    run_restorers,
)
from freshness.errors import NodeUnavailable
from freshness.nodes.memory import MemoryStore
from freshness.position import MariadbPosition, MysqlGtidSet, Position

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
NAMESPACE, LINEAGE, NODE = "shop", "shop/-", "n1"
LIFE, PREVIOUS = b"LIFELIFE", b"PREVIOUS"
PRIMARY = "first"
STRIPES = 8
WANTED = wanted_key(NAMESPACE, LINEAGE)

Before = Callable[[Request], None]


def at(numbers: str) -> Position:
    return MysqlGtidSet.parse(f"{SOURCE}:{numbers}")


FLOOR = at("1-10")


def key_of(number: int) -> bytes:
    return stripe_key(NAMESPACE, LINEAGE, number)


@dataclass
class Scene:
    """One node, its restorer, a stream whose position the test sets, and the actions of others in between.

    ``before`` is called before each request is carried out, ``instead`` may answer it. ``flows``: the sent requests.
    """

    stripes: int = STRIPES
    now: float = 1000.0
    epoch: int = 1
    progress: Position = field(default_factory=lambda: at("1-1000"))
    streamed: Streamed | None = None
    before: Before = lambda _: None
    instead: Callable[[Request], Reply | None] = lambda _: None
    flows: list[Sequence[Request]] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    """From when on the heartbeats had to be begun."""

    def __post_init__(self) -> None:
        self.store = MemoryStore(NODE, clock=lambda: self.now)
        self._nonces = 0
        self.restorer = self.create()
        self.put_record()

    def create(self) -> Restorer:
        policy = NodePolicy(NAMESPACE, LINEAGE, 7, {}, self.stripes, 5, 4.0, 1.0)
        return Restorer(NODE, policy, lambda: self.now, self.nonce)

    def nonce(self) -> bytes:
        self._nonces += 1
        return b"nonce%03d" % self._nonces

    def put_record(self, life: bytes = LIFE, node: str = NODE) -> None:
        record = NodeRecord(
            lineage=LINEAGE,
            life=life,
            tenure=b"TENURE..",
            is_open=True,
            epoch=1,
            ring=7,
            as_of_us=0,
            heartbeat_age_ms=0,
            node=node,
            stripes=self.stripes,
            progress=self.progress,
            floor=FLOOR,
            primary=PRIMARY,
        )
        self.put(record_key(NAMESPACE, LINEAGE), record.encode())

    def put(self, key: bytes, data: bytes) -> None:
        self.store.evict(key)
        assert isinstance(self.store.answer(Add(key, data, 0)), Stored)

    def put_stripe(self, number: int, numbers: str = "11", life: bytes = LIFE) -> None:
        self.put(key_of(number), Stripe(life, at(numbers)).encode())

    def put_all(self) -> None:
        for number in range(self.stripes):
            self.put_stripe(number)

    def append(self, number: int, numbers: str, life: bytes = LIFE) -> bool:
        """As an invalidator does it. Whether the stripe was there."""
        reply = self.store.answer(Append(key_of(number), encode_chunk(life, at(numbers))))
        return isinstance(reply, Stored)

    def deliver(self, numbers: str, begun_at: float | None = None, *, epoch: int = 1, primary: str = PRIMARY) -> None:
        """The stream has come so far when a heartbeat came back that was begun now, or then."""
        self.streamed = Streamed(at(numbers), epoch, self.now if begun_at is None else begun_at, primary)

    def answer(self, step: Step) -> Any:
        match step:
            case Flow():
                assert step.node == NODE
                self.flows.append(step.requests)
                return [self._perform(request) for request in step.requests]
            case ReadStream():
                self.asked.append(step.begun_at)
                return self.streamed
            case _:
                raise AssertionError(f"a restorer needs no {step}")

    def _perform(self, request: Request) -> Reply:
        self.before(request)
        reply = self.instead(request)
        return self.store.answer(request) if reply is None else reply

    def look(self, restorer: Restorer | None = None) -> None:
        drive((restorer or self.restorer).look(), self.answer)

    def value(self, number: int) -> bytes | None:
        item = self.store.peek(key_of(number))
        return None if item is None else item.value

    def stripe(self, number: int, life: bytes = LIFE) -> Stripe | None:
        value = self.value(number)
        return None if value is None else find_stripe(value, life)

    def position(self, number: int) -> str:
        stripe = self.stripe(number)
        assert stripe is not None, f"stripe {number} is absent"
        return str(stripe.position).removeprefix(f"{SOURCE}:")

    def pending(self, number: int) -> PendingStripe:
        value = self.value(number)
        assert value is not None, f"nothing stands in the place of stripe {number}"
        return PendingStripe.decode(value)

    def whole(self) -> list[int]:
        return [number for number in range(self.stripes) if self.stripe(number) is not None]

    def complete(self) -> None:
        """Nothing is missing any more, and the first round is over."""
        self.put_all()
        self.look()
        assert self.restorer.is_complete
        self.flows.clear()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def on(kind: type[Request], key: bytes, act: Callable[[], object], times: int = 1) -> Before:
    """Act before each of the first ``times`` requests of this kind on this key."""
    left = [times]

    def before(request: Request) -> None:
        if isinstance(request, kind) and request.key == key and left[0]:
            left[0] -= 1
            act()

    return before


# -- the three steps -----------------------------------------------------------------------------------


def test_a_stripe_is_put_back_only_after_a_heartbeat_that_was_begun_later(scene: Scene) -> None:
    scene.deliver("1-20")
    scene.now += 1
    scene.look()
    assert not scene.restorer.is_complete
    for number in range(STRIPES):
        assert scene.pending(number).chunks == ()
    scene.now += 1
    scene.look()
    assert scene.whole() == [], "that heartbeat was begun before the pending stripe stood"
    scene.deliver("1-30", begun_at=1000.999)
    scene.look()
    assert scene.whole() == []
    scene.deliver("1-30", begun_at=1001.0)
    scene.look()
    assert scene.whole() == list(range(STRIPES))
    assert {scene.position(number) for number in range(STRIPES)} == {"11-30"}, "all that was streamed by then"
    assert scene.asked == [1001.0] * 3
    assert scene.restorer.is_complete
    assert scene.restorer.restored == STRIPES
    item = scene.store.peek(key_of(0))
    assert item is not None
    assert item.ttl_seconds == -1, "a whole stripe has no TTL"


def test_each_put_back_waits_for_a_heartbeat_of_its_own(scene: Scene) -> None:
    scene.look()
    scene.deliver("1-20")
    scene.look()
    assert scene.restorer.is_complete
    scene.now += SWEEP_SECONDS
    scene.store.evict(key_of(3))
    scene.look()
    scene.deliver("1-30", begun_at=scene.now - 0.1)
    scene.look()
    assert scene.stripe(3) is None, "that heartbeat was begun after the first put-back, and before this one"
    scene.deliver("1-31")
    scene.look()
    assert scene.position(3) == "11-31"


def test_the_last_of_the_pending_stripes_decides_over_the_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "AT_ONCE_MAX", 4)
    scene = Scene()

    def pass_time() -> None:
        scene.now += 1

    scene.before = on(Add, key_of(7), pass_time)
    scene.look()
    scene.deliver("1-20", begun_at=1000.5)
    scene.look()
    assert scene.whole() == []
    scene.deliver("1-20", begun_at=1001.0)
    scene.look()
    assert scene.whole() == list(range(STRIPES))


def test_without_an_own_heartbeat_nothing_is_put_back(scene: Scene) -> None:
    scene.look()
    scene.look()
    assert scene.whole() == []
    assert not scene.restorer.is_complete


def test_what_is_appended_meanwhile_is_in_the_whole_stripe(scene: Scene) -> None:
    scene.look()
    assert scene.append(3, "41")
    assert scene.append(3, "43")
    assert scene.append(3, "99", life=PREVIOUS), "a paused invalidator does so, and counts for nothing"
    scene.deliver("1-20")
    scene.look()
    assert scene.position(3) == "11-20:41:43"
    assert scene.position(4) == "11-20"
    stripe = scene.stripe(3)
    assert stripe is not None
    assert stripe.chunk_count == 1


def test_a_whole_invalidation_between_the_steps_is_in_the_stripe(scene: Scene) -> None:
    """Not by its bytes, but by `invalidate` itself."""
    scene.stripes = 1
    scene.put_record()
    scene.look()
    target = Target(NAMESPACE, LINEAGE, LIFE, 1, FLOOR)
    assert list(drive(invalidate(NODE, [b"k"], target, at("1-50")), scene.answer)) == [0]
    scene.deliver("1-20")
    scene.look()
    assert scene.position(0) == "11-50"


def test_an_append_before_the_pending_stripe_stood_is_covered_by_the_stream(scene: Scene) -> None:
    """It found nothing to append to, and was in the log before the heartbeat was begun."""
    assert not scene.append(2, "25")
    scene.look()
    scene.deliver("1-25")
    scene.look()
    assert scene.position(2) == "11-25"


def test_an_append_between_the_read_and_the_cas_is_not_lost(scene: Scene) -> None:
    scene.look()
    scene.deliver("1-20")
    scene.before = on(Cas, key_of(5), lambda: scene.append(5, "77"))
    scene.look()
    assert scene.position(5) == "11-20:77"
    assert scene.whole() == list(range(STRIPES))


def test_a_stripe_that_changes_at_every_attempt_is_left_to_the_next(scene: Scene) -> None:
    scene.look()
    scene.deliver("1-20")
    scene.before = on(Cas, key_of(5), lambda: scene.append(5, "77"), times=CAS_ATTEMPTS_MAX)
    scene.look()
    assert scene.stripe(5) is None
    assert len(scene.whole()) == STRIPES - 1
    assert not scene.restorer.is_complete
    scene.now += scene.restorer.pending_seconds + 1
    scene.look()
    scene.deliver("1-90")
    scene.look()
    assert scene.position(5) == "11-90"
    assert scene.restorer.is_complete


@pytest.mark.parametrize("place", ["before the read", "before the cas"])
def test_a_pending_stripe_that_was_evicted_is_not_put_back(scene: Scene, place: str) -> None:
    """What was sent while it was away may be nowhere but in the log."""
    scene.look()
    scene.deliver("1-20")

    def lose() -> None:
        assert scene.store.evict(key_of(6))
        assert not scene.append(6, "88")

    scene.before = on(Get if place == "before the read" else Cas, key_of(6), lose)
    scene.look()
    assert scene.stripe(6) is None
    assert len(scene.whole()) == STRIPES - 1
    assert not scene.restorer.is_complete, "it is tried again at once, not only in the next round"
    scene.now += 1
    scene.look()
    assert scene.pending(6).chunks == ()
    scene.deliver("1-88")
    scene.look()
    assert scene.position(6) == "11-88"


def test_a_pending_stripe_that_stands_again_under_another_nonce_is_not_replaced(scene: Scene) -> None:
    scene.look()
    scene.store.evict(key_of(1))
    other = scene.create()
    scene.look(other)
    assert scene.pending(1).nonce != scene.pending(2).nonce
    scene.deliver("1-20")
    scene.look()
    assert 1 not in scene.whole()


def test_a_pending_stripe_is_given_up_when_it_has_expired(scene: Scene) -> None:
    scene.look()
    nonce = scene.pending(0).nonce
    scene.now += scene.restorer.pending_seconds
    scene.look()
    assert not scene.restorer.is_complete
    assert scene.whole() == []
    scene.now += 1
    scene.look()
    assert scene.pending(0).nonce != nonce
    scene.deliver("1-20")
    scene.look()
    assert scene.restorer.is_complete


def test_a_pending_stripe_lives_as_long_as_a_heartbeat_may_take(scene: Scene) -> None:
    """Else a slow stream would never put one back."""
    for age_max, seconds in ((4.0, 4), (35.5, 36)):
        scene.restorer.policy = replace(scene.restorer.policy, heartbeat_age_max_seconds=age_max)
        assert scene.restorer.pending_seconds == seconds + PENDING_MORE_SECONDS
    begun_at = scene.now
    scene.look()
    scene.now += 36
    scene.deliver("1-20", begun_at=begun_at)
    scene.look()
    assert scene.restorer.is_complete


def test_another_history_is_not_put_back(scene: Scene) -> None:
    """The epoch was raised: what was streamed says nothing about the events of this record."""
    scene.look()
    scene.deliver("1-20", epoch=2)
    scene.look()
    assert scene.whole() == []
    scene.deliver("1-20", epoch=1)
    scene.look()
    assert scene.restorer.is_complete


def test_a_heartbeat_of_another_primary_completes_nothing(scene: Scene) -> None:
    """Two servers take writes: its log may lack what another invalidator has sent from the log of the first."""
    scene.look()
    scene.deliver("1-20", primary="another")
    scene.look()
    assert scene.whole() == []
    scene.deliver("1-20")
    scene.look()
    assert scene.restorer.is_complete


def test_a_too_long_position_leaves_the_stripe_absent(scene: Scene) -> None:
    scene.look()
    long = ":".join(str(number) for number in range(11, 2 * CHUNK_BYTES_MAX, 2))
    scene.deliver(f"1-10:{long}")
    scene.look()
    assert scene.whole() == []
    scene.now += scene.restorer.pending_seconds + 1
    scene.deliver("1-99999", begun_at=scene.now + SWEEP_SECONDS)
    scene.now += SWEEP_SECONDS
    scene.look()
    scene.look()
    assert scene.whole() == list(range(STRIPES)), "the next round comes to it again"


def test_a_stripe_that_grows_too_long_by_what_is_appended_is_left_absent(scene: Scene) -> None:
    scene.look()
    scene.append(2, ":".join(str(number) for number in range(101, 101 + CHUNK_BYTES_MAX, 2)))
    scene.deliver("1-20")
    scene.look()
    assert scene.stripe(2) is None
    assert len(scene.whole()) == STRIPES - 1


def test_chunks_of_another_flavor_keep_nobody_else_from_being_put_back(scene: Scene) -> None:
    scene.look()
    scene.store.answer(Append(key_of(2), encode_chunk(LIFE, MariadbPosition.of(0, 1, 5))))
    scene.deliver("1-20")
    scene.look()
    assert scene.stripe(2) is None
    assert len(scene.whole()) == STRIPES - 1


# -- what stands in the place --------------------------------------------------------------------------


def test_a_whole_stripe_of_this_life_is_left_as_it_is(scene: Scene) -> None:
    scene.put_all()
    scene.append(4, "44")
    held = [scene.store.peek(key_of(number)) for number in range(STRIPES)]
    scene.look()
    assert [scene.store.peek(key_of(number)) for number in range(STRIPES)] == held
    assert scene.restorer.is_complete
    assert scene.restorer.restored == 0


@pytest.mark.parametrize(
    "data",
    [
        Stripe(PREVIOUS, at("11-900")).encode(),
        Stripe(PREVIOUS, at("11-900")).encode() + encode_chunk(LIFE, at("15")),
        b"somebody else's",
        b"",
        Stripe(LIFE, at("11")).encode() + b"\0",
        Stripe(LIFE, at("11")).encode()[:3] + b"\0\x20" + Stripe(LIFE, at("11")).encode()[5:],
        Stripe(LIFE, at("11")).encode() + encode_chunk(LIFE, MariadbPosition.of(0, 1, 5)),
    ],
    ids=["previous life", "previous life, appended to", "foreign", "stub", "cut", "too long a length", "two flavors"],
)
def test_all_that_is_no_stripe_of_this_life_is_replaced(scene: Scene, data: bytes) -> None:
    scene.complete()
    scene.put(key_of(2), data)
    scene.now += SWEEP_SECONDS
    scene.look()
    assert scene.pending(2).chunks == ()
    scene.deliver("1-20")
    scene.look()
    assert scene.position(2) == "11-20"
    assert scene.restorer.restored == 1


def test_a_foreign_item_that_changes_meanwhile_is_not_taken_for_pending(scene: Scene) -> None:
    scene.put_stripe(2, life=PREVIOUS)
    scene.before = on(Cas, key_of(2), lambda: scene.append(2, "50"))
    scene.look()
    scene.deliver("1-20")
    scene.look()
    assert scene.whole() == [number for number in range(STRIPES) if number != 2]
    scene.look()
    scene.deliver("1-50")
    scene.look()
    assert scene.position(2) == "11-50"


def test_a_foreign_item_without_a_version_is_deleted(scene: Scene) -> None:
    """Redis gives items that are not of its making the version 0, which no CAS fits."""
    scene.complete()
    scene.put(key_of(2), b"a string of another program")
    scene.now += SWEEP_SECONDS

    def without_version(request: Request) -> Reply | None:
        held = scene.store.peek(request.key)
        return Item(held.value, 0) if isinstance(request, Get) and request.key == key_of(2) and held else None

    scene.instead = without_version
    scene.look()
    assert scene.value(2) is None
    scene.instead = lambda _: None
    scene.look()
    scene.deliver("1-20")
    scene.look()
    assert scene.position(2) == "11-20"


def test_the_pending_stripe_of_another_invalidator_is_left_alone(scene: Scene) -> None:
    other = scene.create()
    scene.put_all()
    scene.store.evict(key_of(3))
    scene.look(other)
    nonce = scene.pending(3).nonce
    scene.look()
    assert scene.pending(3).nonce == nonce
    assert not scene.restorer.is_complete
    scene.deliver("1-20")
    scene.look()
    assert scene.pending(3).nonce == nonce, "it is not this one's to replace"
    scene.look(other)
    assert scene.position(3) == "11-20"
    scene.look()
    assert scene.restorer.is_complete
    assert (other.restored, scene.restorer.restored) == (1, 0)


def test_the_pending_stripe_of_a_dead_invalidator_expires(scene: Scene) -> None:
    scene.look(scene.create())
    scene.look()
    scene.now += scene.restorer.pending_seconds + 1
    scene.look()
    scene.deliver("1-20")
    scene.look()
    assert scene.restorer.restored == STRIPES


def test_of_two_who_put_back_at_once_each_does_a_part(scene: Scene) -> None:
    one, two = scene.create(), scene.create()
    scene.before = on(Add, key_of(4), lambda: scene.look(two))
    scene.look(one)
    assert len({scene.pending(number).nonce for number in range(STRIPES)}) == 2
    scene.deliver("1-20")
    scene.look(one)
    scene.look(two)
    assert scene.whole() == list(range(STRIPES))
    assert one.restored + two.restored == STRIPES
    assert one.restored > 0 < two.restored


# -- lives ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", ["", "n2"])
def test_a_node_without_a_record_of_its_name_is_left_alone(scene: Scene, node: str) -> None:
    if node:
        scene.put_record(node=node)
    else:
        scene.store.evict(record_key(NAMESPACE, LINEAGE))
    scene.look()
    assert [scene.value(number) for number in range(STRIPES)] == [None] * STRIPES
    assert not scene.restorer.is_complete


def test_the_record_is_asked_for_as_an_item_of_this_server_process(scene: Scene) -> None:
    scene.look()
    assert scene.flows[0][0] == Get(record_key(NAMESPACE, LINEAGE), is_bound=True)


def test_a_new_life_begins_a_new_first_round(scene: Scene) -> None:
    scene.complete()
    scene.put_record(b"ANOTHER!")
    scene.look()
    assert not scene.restorer.is_complete
    for number in range(STRIPES):
        assert scene.pending(number).chunks == ()
    scene.deliver("1-20")
    scene.look()
    assert all(scene.stripe(number, b"ANOTHER!") is not None for number in range(STRIPES))


def test_what_was_pending_in_a_previous_life_is_not_put_back_in_the_next(scene: Scene) -> None:
    """Its heartbeat is young enough; but a life begins with nothing in its stripes, and a floor of its own."""
    scene.look()
    scene.deliver("1-20")
    scene.put_record(b"ANOTHER!")
    scene.look()
    assert all(scene.stripe(number, b"ANOTHER!") is None for number in range(STRIPES))


# -- what is looked at, and when -----------------------------------------------------------------------


def test_the_first_round_covers_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "AT_ONCE_MAX", 100)
    scene = Scene(stripes=350)
    scene.look()
    assert [len(flow) for flow in scene.flows] == [2, 100, 100, 100, 100, 100, 100, 50, 50]
    scene.deliver("1-20")
    scene.look()
    assert scene.whole() == list(range(350))
    assert scene.restorer.is_complete


def asked_of(scene: Scene) -> list[int]:
    """The stripes that the last look asked for, in order."""
    names = {key_of(number): number for number in range(scene.stripes)}
    return [
        names[request.key]
        for flow in scene.flows
        for request in flow
        if isinstance(request, Get) and request.key in names
    ]


def test_after_that_each_is_looked_at_once_in_a_sweep() -> None:
    scene = Scene(stripes=120)
    scene.complete()
    seen: list[int] = []
    for _ in range(int(SWEEP_SECONDS)):
        scene.now += 1
        scene.flows.clear()
        scene.look()
        seen += asked_of(scene)
    assert seen == list(range(120))


def test_a_silent_eviction_is_found_by_the_sweep(scene: Scene) -> None:
    scene.complete()
    scene.store.evict(key_of(7))
    scene.now += SWEEP_SECONDS / 2
    scene.look()
    assert scene.value(7) is None
    scene.now += SWEEP_SECONDS / 2
    scene.look()
    scene.deliver("1-20")
    scene.look()
    assert scene.position(7) == "11-20"


def test_wanted_stripes_come_first() -> None:
    scene = Scene(stripes=600)
    scene.complete()
    assert scene.store.answer(Append(WANTED, encode_wanted([300, 17, 300, 599, 600, 1 << 31]))) == Stored()
    scene.now += 0.2
    scene.flows.clear()
    scene.look()
    assert set(asked_of(scene)[:3]) == {300, 17, 599}
    assert asked_of(scene)[3:] == [0, 1], "and the next ones of the round"
    held = scene.store.peek(WANTED)
    assert held is not None
    assert held.value == STUB, "the list is empty again"
    assert held.ttl_seconds >= WANTED_SECONDS


def test_what_is_noted_while_the_list_is_emptied_is_kept(scene: Scene) -> None:
    scene.complete()
    scene.store.answer(Append(WANTED, encode_wanted([3])))
    scene.before = on(Cas, WANTED, lambda: scene.store.answer(Append(WANTED, encode_wanted([5]))))
    scene.look()
    held = scene.store.peek(WANTED)
    assert held is not None
    assert held.value == encode_wanted([3, 5])


def test_a_list_of_foreign_make_without_a_version_is_deleted(scene: Scene) -> None:
    scene.complete()
    scene.put(WANTED, encode_wanted([3]) + b"?")
    scene.instead = lambda request: (
        Item(encode_wanted([3]) + b"?", 0) if isinstance(request, Get) and request.key == WANTED else None
    )
    scene.look()
    assert scene.store.peek(WANTED) is None
    assert asked_of(scene)[0] == 3


# -- doubt ---------------------------------------------------------------------------------------------


def test_a_stripe_that_holds_for_long_what_progress_lacks_is_deleted(scene: Scene) -> None:
    """A failover may have taken the transaction back: no replica will ever contain it (ADR 0018)."""
    scene.progress = at("1-20")
    scene.put_record()
    scene.complete()
    scene.put_stripe(4, "11-25")
    scene.now += SWEEP_SECONDS
    scene.look()
    scene.now += DOUBT_SECONDS - 0.1
    scene.look()
    assert scene.position(4) == "11-25"
    scene.now += 0.1
    scene.look()
    assert scene.value(4) is None
    scene.look()
    scene.deliver("1-20")
    scene.look()
    assert scene.position(4) == "11-20"
    assert scene.restorer.is_complete


def test_a_stripe_that_progress_catches_up_with_is_kept(scene: Scene) -> None:
    scene.progress = at("1-20")
    scene.put_record()
    scene.complete()
    for number in range(21, 60, 5):
        scene.put_stripe(4, f"11-{number}")
        scene.now += DOUBT_SECONDS + 1
        scene.look()
        assert scene.position(4) == f"11-{number}", "each time it holds more than progress, but not the same"
        scene.progress = at(f"1-{number}")
        scene.put_record()


def test_a_doubt_ends_with_its_stripe(scene: Scene) -> None:
    scene.progress = at("1-20")
    scene.put_record()
    scene.complete()
    scene.put_stripe(4, "11-25")
    scene.now += SWEEP_SECONDS
    scene.look()
    scene.store.evict(key_of(4))
    scene.now += DOUBT_SECONDS
    scene.look()
    scene.deliver("1-21")
    scene.look()
    scene.now += 1
    scene.look()
    assert scene.position(4) == "11-21", "it is another stripe, which holds what progress lacks since a moment"


def test_progress_may_be_as_old_as_a_heartbeat(scene: Scene) -> None:
    scene.restorer.policy = replace(scene.restorer.policy, heartbeat_age_max_seconds=94.0)
    scene.progress = at("1-20")
    scene.put_record()
    scene.complete()
    scene.put_stripe(4, "11-25")
    scene.now += SWEEP_SECONDS
    scene.look()
    scene.now += 93
    scene.look()
    assert scene.position(4) == "11-25"
    scene.now += 1
    scene.look()
    assert scene.value(4) is None


# -- failures ------------------------------------------------------------------------------------------


def fail_at(scene: Scene, flow: int) -> None:
    """The node does not answer the ``flow``-th flow from now on; the requests before its last were carried out."""
    start = len(scene.flows)

    def before(request: Request) -> None:
        if len(scene.flows) == start + flow and request is scene.flows[-1][-1]:
            raise NodeUnavailable(f"{NODE} is down")

    scene.before = before


@pytest.mark.parametrize("flow", [1, 2, 3, 4, 5])
def test_a_failure_in_the_first_round_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch, flow: int) -> None:
    monkeypatch.setattr(restore, "AT_ONCE_MAX", 4)
    scene = Scene()
    scene.deliver("1-20", begun_at=scene.now + 1)
    fail_at(scene, flow)
    with pytest.raises(NodeUnavailable):
        scene.look()
    assert not scene.restorer.is_complete
    scene.before = lambda _: None
    scene.now += scene.restorer.pending_seconds + 2  # what a lost answer left pending expires
    for _ in range(4):
        scene.look()
        scene.deliver("1-20")
    assert scene.whole() == list(range(STRIPES))
    assert scene.restorer.is_complete


def test_a_heartbeat_from_before_an_interrupted_step_1_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stripes are pending, the flow for the others failed: their time is that of the acknowledgement."""
    monkeypatch.setattr(restore, "AT_ONCE_MAX", 4)
    scene = Scene()
    scene.deliver("1-20")
    scene.now += 1
    fail_at(scene, 4)
    with pytest.raises(NodeUnavailable):
        scene.look()
    scene.before = lambda _: None
    assert scene.pending(0).chunks == ()
    scene.look()
    assert scene.whole() == []
    scene.deliver("1-30")
    scene.look()
    assert scene.position(0) == "11-30"


@pytest.mark.parametrize("flow", [1, 2, 3, 4, 5])
def test_a_failure_while_stripes_are_completed_leaves_none_out(monkeypatch: pytest.MonkeyPatch, flow: int) -> None:
    monkeypatch.setattr(restore, "AT_ONCE_MAX", 4)
    scene = Scene()
    scene.look()
    scene.deliver("1-20")
    fail_at(scene, flow)
    with pytest.raises(NodeUnavailable):
        scene.look()
    assert not scene.restorer.is_complete
    scene.before = lambda _: None
    scene.now += scene.restorer.pending_seconds + 2
    for _ in range(3):
        scene.look()
        scene.deliver("1-30")
    assert scene.whole() == list(range(STRIPES))
    assert scene.restorer.is_complete


def test_a_refused_stripe_is_tried_again(scene: Scene) -> None:
    """If memcached has no memory for the new item, it drops the previous one."""
    scene.look()
    scene.deliver("1-20")

    def refuse(request: Request) -> Reply | None:
        if isinstance(request, Cas) and request.key == key_of(3):
            scene.store.evict(key_of(3))
            return MISSING
        return None

    scene.instead = refuse
    scene.look()
    assert not scene.restorer.is_complete
    scene.instead = lambda _: None
    scene.look()
    scene.deliver("1-20")
    scene.look()
    assert scene.restorer.is_complete


def test_a_node_that_fails_is_left_alone_for_a_while_and_the_others_are_not(caplog: pytest.LogCaptureFixture) -> None:
    scenes = {NODE: Scene(), "n2": Scene()}
    scenes["n2"].put_record(node="n2")
    scenes["n2"].restorer.node = "n2"
    down = {NODE}
    asked: list[list[str]] = []
    waits: list[float] = []

    def answer(step: Step) -> Any:
        if isinstance(step, Wait):
            waits.append(step.seconds)
            for scene in scenes.values():
                scene.now += 1.5 * restore.LOOK_SECONDS
            if len(waits) == 5:
                raise KeyboardInterrupt
            return None
        if isinstance(step, ReadStream):
            return Streamed(at("1-20"), 1, scenes[NODE].now, PRIMARY)
        assert isinstance(step, Flows)
        if any(isinstance(request, Get) and request.is_bound for request in step.flows[0].requests):
            asked.append([flow.node for flow in step.flows])
        return [
            NodeUnavailable(f"{flow.node} is down")
            if flow.node in down
            else [scenes[flow.node].store.answer(request) for request in flow.requests]
            for flow in step.flows
        ]

    procedure = run_restorers([scene.restorer for scene in scenes.values()], lambda: 0.5)
    with pytest.raises(KeyboardInterrupt):
        drive_until_interrupted(procedure, answer)
    assert waits == [restore.BUSY_SECONDS] + [restore.LOOK_SECONDS] * 4
    assert asked == [[NODE, "n2"], [NODE, "n2"], ["n2"], [NODE, "n2"], ["n2"]]
    assert scenes["n2"].whole() == list(range(STRIPES))
    assert "node n1: its stripes could not be looked at: n1 is down" in caplog.text


@pytest.mark.parametrize("is_there", [True, False])
def test_what_waits_for_a_heartbeat_is_looked_at_again_soon_for_a_while(scene: Scene, is_there: bool) -> None:
    """The heartbeat is brought forward. If none comes back, nobody needs to look so often."""
    waits: list[float] = []

    def answer(step: Step) -> Any:
        if isinstance(step, Flows):
            return [scene.answer(flow) for flow in step.flows]
        if not isinstance(step, Wait):
            return scene.answer(step)
        waits.append(step.seconds)
        scene.now += step.seconds
        if is_there:
            scene.deliver("1-20")
        if scene.now - began_at > restore.BUSY_SECONDS_MAX + 10 * restore.LOOK_SECONDS:
            raise KeyboardInterrupt
        return None

    began_at = scene.now
    with pytest.raises(KeyboardInterrupt):
        drive_until_interrupted(run_restorers([scene.restorer], lambda: 0.5), answer)
    busy = [each for each in waits if each == restore.BUSY_SECONDS]
    assert waits == busy + [restore.LOOK_SECONDS] * (len(waits) - len(busy))
    if is_there:
        assert (len(busy), scene.whole()) == (1, list(range(STRIPES)))
    else:
        assert sum(busy) == pytest.approx(restore.BUSY_SECONDS_MAX, abs=2 * restore.BUSY_SECONDS)


def test_a_first_round_goes_on_soon_and_begins_with_what_readers_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """All stripes of a new life take a second to put back. Stripes that readers want do not wait for the others."""
    monkeypatch.setattr(restore, "FIRST_AT_ONCE_MAX", 3)
    scene = Scene()
    scene.look()
    assert scene.store.answer(Append(WANTED, encode_wanted([7]))) == Stored()
    whole: list[list[int]] = []
    while not scene.restorer.is_complete:
        assert scene.restorer.is_busy
        scene.now += restore.BUSY_SECONDS
        scene.deliver("1-20")
        scene.look()
        if scene.whole() not in whole:
            whole.append(scene.whole())
    assert whole == [[0, 1, 2], [0, 1, 2, 3, 4, 5, 7], list(range(STRIPES))]


def drive_until_interrupted(procedure: Any, answer: Callable[[Step], Any]) -> None:
    """`drive` hands errors to the procedure; an interruption ends it from outside."""
    reply = None
    while True:
        reply = answer(procedure.send(reply))


def test_a_look_that_fails_says_so(scene: Scene) -> None:
    def be_down(_: Request) -> None:
        raise NodeUnavailable("down")

    scene.before = be_down
    with pytest.raises(NodeUnavailable):
        scene.look()
    assert not scene.restorer.is_resting


def test_a_node_is_left_alone_longer_each_time_until_it_answers(scene: Scene) -> None:
    """A node that was only restarted has its stripes again at once."""

    def assert_rests(seconds: float) -> None:
        scene.restorer.note(NodeUnavailable("down"))
        scene.now += seconds - 0.01
        assert scene.restorer.is_resting
        scene.now += 0.02
        assert not scene.restorer.is_resting

    for seconds in (LOOK_SECONDS, 2 * LOOK_SECONDS, 4 * LOOK_SECONDS, 8 * LOOK_SECONDS, REST_SECONDS, REST_SECONDS):
        assert_rests(seconds)
    scene.restorer.note(None)
    assert_rests(LOOK_SECONDS)
