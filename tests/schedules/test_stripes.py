"""The defences of stripes: absence refuses, and what is put back lacks nothing that was sent while it was away.

As in test_defences.py every schedule is played twice: with the code as it is, and without one defence. The
invalidators of a schedule are ``one``, which puts a stripe back, and ``two``, which sends at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, product
from typing import Any, Final

import pytest

from freshness.algorithm import envelope, fill, invalidate, restore
from freshness.algorithm.admission import join
from freshness.algorithm.envelope import NodeRecord, PendingStripe, Stripe
from freshness.algorithm.request import (
    CONFLICT,
    DONE,
    MISSING,
    Add,
    Append,
    Cas,
    Delete,
    Get,
    Item,
    Procedure,
    Reply,
    Request,
    Streamed,
)
from freshness.algorithm.restore import SWEEP_SECONDS, Restorer
from freshness.algorithm.rule import ReadOutcome, find_fill_refusal
from freshness.errors import FormatError
from freshness.position import MysqlGtidSet, Position
from tests.schedules.test_defences import STRIPE_KEY, Plant, go_on, prove, read_lagging, start
from tests.schedules.test_usefulness import prove_use
from tests.schedules.world import (
    CUSTOMER,
    KEY,
    LINEAGE,
    NODE,
    Invalidator,
    Reader,
    Replica,
    Run,
    World,
    is_delete,
    lookup,
)

OTHER: Final = "shop/80-"
LAST: Final = 9
LOOK, MARK = Restorer.look, Restorer._mark
COMPLETE, COMPLETED = Restorer._complete, Restorer._completed


def read_at(world: World, replica: Replica) -> ReadOutcome:
    """By a replica that stands still; whatever is stored is then read by another."""
    outcome = Reader(world, replica).read()
    Reader(world, replica).read()
    return outcome


def send(two: Invalidator) -> None:
    """An event that concerns the key, sent and acknowledged, and no look at stripes."""
    two.world.commit(KEY)
    two.applying().finish()


# -- absence refuses -----------------------------------------------------------------------------------


def allow_without_stripe(_: World, patch: pytest.MonkeyPatch) -> None:
    def find(policy: Any, ring: int, records: Any, stripes: Any, tokens: Any) -> ReadOutcome | None:
        empty = {name: Stripe(record.life, MysqlGtidSet()) for name, record in records.items() if record}
        held = {name: stripe for name, stripe in stripes.items() if stripe is not None}
        return find_fill_refusal(policy, ring, records, {**empty, **held}, tokens)

    patch.setattr(fill, "find_fill_refusal", find)


def test_an_absent_stripe_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """F5: a stripe is evicted, without a word, and a replica still lacks what it demanded."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        one.apply()
        world.evict_stripe()
        return read_lagging(world)

    prove(schedule, ReadOutcome.STRIPE_ABSENT, allow_without_stripe, "I1", monkeypatch)


def test_the_stub_stands_before_the_stripe_is_read() -> None:
    """F1: a reader that had read the stripe before its stub stood would miss what is appended in between."""
    world = World()
    one = start(world)
    replica = world.replica()
    reading = Reader(world, replica).reading().until_kind(Get, key=KEY)
    world.commit(KEY)
    one.apply()
    (read,) = reading.finish()
    assert read.outcome is ReadOutcome.STRIPE


def test_where_nothing_was_appended_nothing_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """F5: the stripe is away while the event is sent."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.evict_stripe()
        send(one)
        return read_lagging(world)

    prove(schedule, ReadOutcome.STRIPE_ABSENT, allow_without_stripe, "I1", monkeypatch)


def test_a_pending_stripe_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """F5: the pending stripe has only what was appended to it; what was sent before, it lacks."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        send(one)
        world.evict_stripe()
        one.looking().until(lambda _: False, may_end=True)
        one.restorer._again.add(envelope.stripe_number(KEY, world.stripes))
        one.looking().until(lambda _: False, may_end=True)
        assert world.find_pending() is not None
        return read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def any_kind(data: bytes, life: bytes) -> Stripe | None:
            try:
                return PendingStripe.decode(data).complete(life, MysqlGtidSet())
            except FormatError:
                return envelope.find_stripe(data, life)

        patch.setattr(fill, "find_stripe", any_kind)

    prove(schedule, ReadOutcome.STRIPE_ABSENT, plant, "I1", monkeypatch)


def test_a_stripe_of_a_previous_life_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """F7: a node begins a new life and keeps its memory. The position of a stripe of the previous life lacks all
    later appends."""

    def schedule(world: World) -> ReadOutcome:
        start(world)
        two = Invalidator(world)
        two.run(join(two.member, two.cursor, is_fresh=True)).finish()
        two.cursor = two.member.applied
        send(two)
        return read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def of_any_life(data: bytes, life: bytes) -> Stripe | None:
            return replace(Stripe.decode(data), life=life)

        patch.setattr(fill, "find_stripe", of_any_life)

    prove(schedule, ReadOutcome.STRIPE_ABSENT, plant, "I1", monkeypatch)


def test_a_fill_takes_nothing_from_the_stripe(monkeypatch: pytest.MonkeyPatch) -> None:
    """F63: an up-to-date reader fills, the entry is evicted, and a lagging reader comes."""

    def schedule(world: World) -> tuple[ReadOutcome, ReadOutcome]:
        one = start(world)
        send(one)
        first = Reader(world, world.replica().catch_up()).read()
        world.stores[NODE].evict(KEY)
        return first, read_lagging(world)

    def plant(world: World, _: pytest.MonkeyPatch) -> None:
        def empty_the_stripe(node: str, request: Request) -> Reply | None:
            if isinstance(request, Cas) and request.key == KEY:
                life = world.record().life
                world.stores[node].answer(Delete(STRIPE_KEY))
                world.stores[node].answer(Add(STRIPE_KEY, Stripe(life, MysqlGtidSet()).encode(), 0))
            return None

        world.answer_instead = empty_the_stripe

    prove(schedule, (ReadOutcome.FILLED, ReadOutcome.STRIPE), plant, "I1", monkeypatch)


# -- the append ----------------------------------------------------------------------------------------


def refuse_one_append(world: World) -> None:
    """As a memcached without memory for more: the answer is that of an absent item, and the item may be there."""
    planted, is_refused = world.answer_instead, False

    def answer(node: str, request: Request) -> Reply | None:
        nonlocal is_refused
        if isinstance(request, Append) and request.key == STRIPE_KEY and not is_refused:
            is_refused = True
            return CONFLICT
        return planted(node, request)

    world.answer_instead = answer


def read_behind_a_refused_append(world: World) -> tuple[ReadOutcome, ReadOutcome]:
    """A lagging reader comes before the invalidator has heard of the refusal, and another one at the end."""
    one = start(world)
    world.commit(KEY)
    refuse_one_append(world)
    sending = one.applying().until(is_delete)
    sending.advance()
    early = Reader(world, world.replica()).read()
    sending.finish()
    return early, read_lagging(world)


def test_a_stripe_that_took_no_append_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """F93: whether it is absent or only full, the answer does not say."""

    def plant(world: World, _: pytest.MonkeyPatch) -> None:
        def keep(_: str, request: Request) -> Reply | None:
            return DONE if isinstance(request, Delete) and request.key == STRIPE_KEY else None

        world.answer_instead = keep

    danger = ReadOutcome.FILLED, ReadOutcome.STRIPE_ABSENT
    prove(read_behind_a_refused_append, danger, plant, "I1", monkeypatch)


def test_keys_are_deleted_again_behind_their_stripe(monkeypatch: pytest.MonkeyPatch) -> None:
    """F93: until the stripe was deleted, a lagging reader was allowed to fill."""

    def plant(world: World, _: pytest.MonkeyPatch) -> None:
        deletes = 0

        def once(_: str, request: Request) -> Reply | None:
            nonlocal deletes
            if isinstance(request, Delete) and request.key == KEY and is_delete(request):
                deletes += 1
                return None if deletes == 1 else DONE
            return None

        world.answer_instead = once

    danger = ReadOutcome.FILLED, ReadOutcome.STRIPE_ABSENT
    prove(read_behind_a_refused_append, danger, plant, "I1", monkeypatch)


def test_an_append_of_a_previous_life_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """F95: a failover loses an event, and the node begins a new life. Then a paused invalidator appends that
    event to a stripe of the new life, which no server could ever satisfy."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        paused = one.applying().until_kind(Append)
        world.database.transactions.clear()
        world.database.epoch = 2
        start(world)
        paused.advance()
        assert world.stores[NODE].peek(STRIPE_KEY) is not None
        return Reader(world, world.replica().catch_up()).read()

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def of_any_life(position: Position, _: bytes, chunks: Any) -> Position:
            return position.union_all([at for _, at in chunks])

        patch.setattr(envelope, "_unite", of_any_life)

    prove_use(schedule, ReadOutcome.FILLED, plant, monkeypatch)


def test_a_shortened_stripe_is_the_union_of_its_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """F48: the invalidator that is behind appends last, and shortens."""
    monkeypatch.setattr(invalidate, "SHORTEN_SHARE", 1)

    def schedule(world: World) -> tuple[int, ReadOutcome]:
        one, two = start(world), start(world)
        first = world.commit(KEY)
        late = two.applying().until_kind(Append)
        send(one)
        go_on(late)
        stripe = world.find_stripe()
        assert stripe is not None
        return stripe.chunk_count, read_at(world, world.replica(first))

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def the_last(data: bytes, life: bytes) -> bytes:
            reader = envelope._open(data, envelope.Kind.STRIPE)[1]
            (*_, (_, position)) = envelope._read_chunks(reader)
            return Stripe(life, position).encode()

        patch.setattr(invalidate, "_shortened", the_last)

    prove(schedule, (1, ReadOutcome.STRIPE), plant, "I1", monkeypatch)


def test_a_stripe_of_a_busy_key_stays_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """F97: each event appends a chunk, and no stripe expires."""

    def schedule(world: World) -> bool:
        one = start(world)
        longest = 0
        for _ in range(40):
            send(one)
            stripe = world.find_stripe()
            assert stripe is not None
            longest = max(longest, stripe.chunk_count)
        return longest < 30

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(invalidate, "SHORTEN_SHARE", 1 << 40)

    prove_use(schedule, True, plant, monkeypatch)


# -- the put-back --------------------------------------------------------------------------------------


def mark(one: Invalidator) -> None:
    """The first step of a put-back: the pending stripe is there."""
    one.restorer._again.add(envelope.stripe_number(KEY, one.world.stripes))
    one.look()
    pending = one.world.find_pending()
    assert pending is not None
    assert pending.nonce == one.restorer._pending_nonce


def beat(one: Invalidator) -> None:
    """An own heartbeat comes back, behind all that was committed by now."""
    one.apply(one.batch())


def is_put_back(world: World) -> bool:
    return world.find_stripe() is not None


def complete_at_once(_: World, patch: pytest.MonkeyPatch) -> None:
    """A put-back does not wait for a heartbeat."""

    def complete(self: Restorer, record: NodeRecord) -> Any:
        self._pending_since = float("-inf")
        yield from COMPLETE(self, record)

    patch.setattr(Restorer, "_complete", complete)


def date_from_the_look(_: World, patch: pytest.MonkeyPatch) -> None:
    """A heartbeat suffices that was begun when the look was, before the pending stripe was there."""

    def look(self: Restorer) -> Any:
        begun = self.clock()
        yield from LOOK(self)
        self._pending_since = begun

    patch.setattr(Restorer, "look", look)


def drop_chunks(_: World, patch: pytest.MonkeyPatch) -> None:
    """The whole stripe has nothing of what was appended to the pending one."""

    def complete(_: PendingStripe, life: bytes, position: Position) -> Stripe:
        return Stripe(life, position)

    patch.setattr(PendingStripe, "complete", complete)


def take_any_pending(_: World, patch: pytest.MonkeyPatch) -> None:
    """The nonce is not looked at."""

    def completed(self: Restorer, data: bytes, life: bytes, position: Position) -> bytes | None:
        own = PendingStripe(self._pending_nonce).encode()
        return COMPLETED(self, own + data[len(own) :], life, position)

    patch.setattr(Restorer, "_completed", completed)


def set_blindly(world: World, _: pytest.MonkeyPatch) -> None:
    """A stripe is set without the comparison that should come first."""

    def answer(node: str, request: Request) -> Reply | None:
        if not isinstance(request, Cas) or request.key != world.stripe_key():
            return None
        world.stores[node].answer(Delete(request.key))
        return world.stores[node].answer(Add(request.key, request.value, request.ttl_seconds))

    world.answer_instead = answer


def forget_what_was_streamed(_: World, patch: pytest.MonkeyPatch) -> None:
    """The whole stripe has only what was appended to the pending one."""

    def completed(self: Restorer, data: bytes, life: bytes, _: Position) -> bytes | None:
        return COMPLETED(self, data, life, MysqlGtidSet())

    patch.setattr(Restorer, "_completed", completed)


def test_a_put_back_waits_for_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """F90: while the stripe is away, one invalidator sends an event, and the other one, whose stream is late,
    puts the stripe back."""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        one, two = start(world), start(world)
        world.evict_stripe()
        send(two)
        mark(one)
        one.look()
        was_put_back, outcome = is_put_back(world), read_lagging(world)
        beat(one)
        one.look()
        assert read_lagging(world) is not ReadOutcome.STRIPE_ABSENT
        return was_put_back, outcome

    prove(schedule, (False, ReadOutcome.STRIPE_ABSENT), complete_at_once, "I1", monkeypatch)


def test_a_put_back_waits_for_a_heartbeat_of_the_primary_that_the_record_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F103: two primaries take writes. While the stripe is away, one invalidator sends an event of the first; the
    other one reads the log of the second, which lacks it, and its heartbeats go there."""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        one, two = start(world), start(world)
        world.evict_stripe()
        send(two)
        mark(one)
        one.passed = Streamed(one.cursor, world.database.epoch, world.moment(), "another")
        one.look()
        return is_put_back(world), read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def complete(self: Restorer, record: NodeRecord) -> Procedure[None]:
            steps = COMPLETE(self, record)
            streamed = yield next(steps)
            with suppress(StopIteration):
                step = steps.send(streamed and replace(streamed, primary=record.primary))
                while True:
                    step = steps.send((yield step))

        patch.setattr(Restorer, "_complete", complete)

    prove(schedule, (False, ReadOutcome.STRIPE_ABSENT), plant, "I1", monkeypatch)


def test_the_heartbeat_of_a_put_back_is_begun_behind_the_pending_stripe(monkeypatch: pytest.MonkeyPatch) -> None:
    """F90: a heartbeat is begun, the event is sent, the stripe is pending, and then the heartbeat comes back."""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        one, two = start(world), start(world)
        world.evict_stripe()
        under_way = one.batch()
        begun, one.passed = one.passed, None
        send(two)
        mark(one)
        assert begun is not None
        one.passed = begun
        one.apply(under_way)
        one.look()
        return is_put_back(world), read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        complete = Restorer._complete

        def of_any_age(self: Restorer, record: NodeRecord) -> Procedure[None]:
            self._pending_since = float("-inf")
            return complete(self, record)

        patch.setattr(Restorer, "_complete", of_any_age)

    prove(schedule, (False, ReadOutcome.STRIPE_ABSENT), plant, "I1", monkeypatch)


def test_a_put_back_counts_from_the_pending_stripe_and_not_from_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """F90: the race of two invalidators that a counter of put-backs cannot detect: one sees that the stripe is
    missing and is paused. The other one sends an event, finds nothing to append to, and acknowledges it. The
    first goes on, and a heartbeat has come back since."""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        one, two = start(world), start(world)
        world.evict_stripe()
        one.restorer._again.add(envelope.stripe_number(KEY, world.stripes))
        paused = one.looking().until_kind(Add)
        beat(one)
        send(two)
        paused.finish()
        assert world.find_pending() is not None
        one.look()
        return is_put_back(world), read_lagging(world)

    prove(schedule, (False, ReadOutcome.STRIPE_ABSENT), date_from_the_look, "I1", monkeypatch)


def test_a_put_back_that_failed_midway_counts_from_its_own_pending_stripes(monkeypatch: pytest.MonkeyPatch) -> None:
    """F90: a look at many stripes takes several flows. One of them fails when the first stripes are pending; a
    heartbeat of before does not suffice for these."""
    monkeypatch.setattr(restore, "AT_ONCE_MAX", 1)

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        one, two = start(world), start(world)
        world.evict_stripe()
        send(two)
        one.restorer._again.add(envelope.stripe_number(KEY, world.stripes))
        run = one.looking().until_kind(Add, key=STRIPE_KEY)
        run.advance()
        run.lose_request()
        assert not go_on(run)
        assert world.find_pending() is not None
        one.look()
        return is_put_back(world), read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def mark_undated(self: Restorer, record: NodeRecord, numbers: Sequence[int]) -> Any:
            since = self._pending_since
            yield from MARK(self, record, numbers)
            self._pending_since = since

        def look_and_date(self: Restorer) -> Any:
            yield from LOOK(self)
            if self._pending:
                self._pending_since = self.clock()

        patch.setattr(Restorer, "_mark", mark_undated)
        patch.setattr(Restorer, "look", look_and_date)

    prove(schedule, (False, ReadOutcome.STRIPE_ABSENT), plant, "I1", monkeypatch)


def test_a_put_back_keeps_what_was_appended_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """F90: the event is sent behind the heartbeat, to the pending stripe."""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        one, two = start(world), start(world)
        world.evict_stripe()
        mark(one)
        beat(one)
        send(two)
        one.look()
        return is_put_back(world), read_lagging(world)

    prove(schedule, (True, ReadOutcome.STRIPE), drop_chunks, "I1", monkeypatch)


def test_a_put_back_replaces_its_own_pending_stripe_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """F90: the pending stripe is evicted, an event finds nothing to append to, and the other one's pending stripe
    takes the place."""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        one, two = start(world), start(world)
        world.evict_stripe()
        mark(one)
        beat(one)
        world.evict_stripe()
        send(two)
        mark(two)
        one.look()
        return is_put_back(world), read_lagging(world)

    prove(schedule, (False, ReadOutcome.STRIPE_ABSENT), take_any_pending, "I1", monkeypatch)


def test_a_put_back_is_by_cas(monkeypatch: pytest.MonkeyPatch) -> None:
    """F58: paused before the last step, and the event is appended to the pending stripe."""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        one, two = start(world), start(world)
        world.evict_stripe()
        mark(one)
        beat(one)
        paused = one.looking().until_kind(Cas, key=STRIPE_KEY)
        send(two)
        paused.finish()
        return is_put_back(world), read_lagging(world)

    prove(schedule, (True, ReadOutcome.STRIPE), set_blindly, "I1", monkeypatch)


def test_a_put_back_never_adds_where_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """F58: paused before the last step, the pending stripe is evicted, and the event finds nothing to append to."""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        one, two = start(world), start(world)
        world.evict_stripe()
        mark(one)
        beat(one)
        paused = one.looking().until_kind(Cas, key=STRIPE_KEY)
        world.evict_stripe()
        send(two)
        paused.finish()
        return is_put_back(world), read_lagging(world)

    def plant(world: World, _: pytest.MonkeyPatch) -> None:
        def or_add(node: str, request: Request) -> Reply | None:
            if not isinstance(request, Cas) or request.key != STRIPE_KEY:
                return None
            reply = world.stores[node].answer(request)
            if reply is not MISSING:
                return reply
            return world.stores[node].answer(Add(request.key, request.value, request.ttl_seconds))

        world.answer_instead = or_add

    prove(schedule, (False, ReadOutcome.STRIPE_ABSENT), plant, "I1", monkeypatch)


def test_a_put_back_holds_what_was_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """F90: the event was sent while nothing was there to take it, by the very process that puts the stripe
    back."""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        one = start(world)
        world.evict_stripe()
        send(one)
        mark(one)
        beat(one)
        one.look()
        return is_put_back(world), read_lagging(world)

    prove(schedule, (True, ReadOutcome.STRIPE), forget_what_was_streamed, "I1", monkeypatch)


def test_a_put_back_is_of_the_history_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """F28: an invalidator still follows a primary that lost a failover, and hears its own heartbeats there."""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        one = start(world)
        previous = one.cursor
        world.database.epoch = 2
        two = start(world)
        world.evict_stripe()
        send(two)
        mark(one)
        one.passed = Streamed(previous, 1, world.moment())
        one.look()
        return is_put_back(world), read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def of_any_epoch(self: Restorer, record: NodeRecord) -> Any:
            procedure, answer = COMPLETE(self, record), None
            while True:
                try:
                    step = procedure.send(answer)
                except StopIteration:
                    return
                answer = yield step
                if isinstance(answer, Streamed):
                    answer = Streamed(answer.position, record.epoch, answer.begun_at)

        patch.setattr(Restorer, "_complete", of_any_epoch)

    prove(schedule, (False, ReadOutcome.STRIPE_ABSENT), plant, "I1", monkeypatch)


def take_turns(make: Callable[[Invalidator], Run[Any]], one: Invalidator) -> Iterator[None]:
    """Carry out a run request by request."""
    run = make(one)
    while run.pending is not None:
        yield
        run.advance()


def put_back(one: Invalidator, beat_at: int) -> Iterator[None]:
    """Two looks. A heartbeat comes back at the given request; of what came before it, nothing was sent yet."""
    one.restorer._again.add(0)
    for place, _ in enumerate(take_turns(Invalidator.looking, one)):
        if place == beat_at:
            one.batch()
        yield
    if beat_at == LAST:
        one.batch()
    yield from take_turns(Invalidator.looking, one)


def pause_everywhere(plant: Plant | None, patch: pytest.MonkeyPatch) -> Iterator[tuple[World, set[ReadOutcome]]]:
    """Two invalidators, each paused once, anywhere: the put-back of the one after its first requests, then the event
    and the first requests of the other's invalidation. The stripe is evicted before, between and after that, and
    lagging readers come at every moment."""
    for evictions, beat_at, first, second in product([(0,), (0, 1), (0, 2)], [0, 4, LAST], range(11), range(7)):
        world, outcomes = World(stripes=1), set[ReadOutcome]()
        one, two = start(world), start(world)
        if plant is not None:
            plant(world, patch)
        putting_back = put_back(one, beat_at)
        for turn in range(3):
            if turn in evictions:
                world.stores[NODE].evict(world.stripe_key())
            outcomes.add(read_lagging(world))
            if turn == 0:
                for _ in range(first):
                    next(putting_back, None)
                world.commit(KEY)
                sending = take_turns(Invalidator.applying, two)
            elif turn == 1:
                for _ in range(second):
                    next(sending, None)
            else:
                for _ in chain(putting_back, sending):
                    if world.find_stripe() is not None:
                        outcomes.add(read_lagging(world))
        outcomes.add(read_lagging(world))
        yield world, outcomes


def test_no_pause_of_a_put_back_or_of_an_invalidation_poisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """F48, F58."""
    seen = set[ReadOutcome]()
    for world, outcomes in pause_everywhere(None, monkeypatch):
        assert world.broken == []
        seen |= outcomes
    assert {ReadOutcome.STRIPE, ReadOutcome.STRIPE_ABSENT, ReadOutcome.FILLED} <= seen


@pytest.mark.parametrize(
    "plant", [complete_at_once, date_from_the_look, drop_chunks, set_blindly, forget_what_was_streamed]
)
def test_some_pause_finds_each_defect_of_a_put_back(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(world.breaks("I1") for world, _ in pause_everywhere(plant, monkeypatch))


# -- usefulness ----------------------------------------------------------------------------------------


def test_a_stripe_that_demands_a_lost_event_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """F95: an event is appended and its sender dies before it is acknowledged. A failover takes the event back;
    the history that the node has acknowledged is still there, so its life goes on."""

    def schedule(world: World) -> tuple[ReadOutcome, bool, ReadOutcome]:
        one = start(world)
        life = world.record().life
        for _ in range(60):
            world.commit(KEY)
        one.applying().until(is_delete)
        world.database.transactions.clear()
        two = start_again(world)
        before = Reader(world, world.replica().catch_up()).read()
        two.live(40)
        after = Reader(world, world.replica().catch_up()).read()
        return before, world.record().life == life, after

    def start_again(world: World) -> Invalidator:
        two = Invalidator(world).join()
        two.apply()
        return two

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(restore, "DOUBT_SECONDS", float("inf"))

    prove_use(schedule, (ReadOutcome.STRIPE, True, ReadOutcome.FILLED), plant, monkeypatch)


def test_a_pending_stripe_whose_owner_died_is_put_back_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """F99: nobody but its owner replaces a pending stripe."""

    def schedule(world: World) -> tuple[bool, ReadOutcome]:
        one, two = start(world), start(world)
        world.evict_stripe()
        mark(one)
        two.live(2 * SWEEP_SECONDS)
        return is_put_back(world), Reader(world, world.replica()).read()

    def plant(world: World, _: pytest.MonkeyPatch) -> None:
        def for_good(node: str, request: Request) -> Reply | None:
            if isinstance(request, Add) and request.key == STRIPE_KEY and request.ttl_seconds:
                return world.stores[node].answer(replace(request, ttl_seconds=0))
            return None

        world.answer_instead = for_good

    prove_use(schedule, (True, ReadOutcome.FILLED), plant, monkeypatch)


def test_what_a_reader_missed_is_put_back_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """F98: nobody says that a stripe was evicted, and a round through all of them takes a minute."""

    def schedule(world: World) -> tuple[ReadOutcome, ReadOutcome]:
        one = start(world)
        one.look()  # the list of missing stripes is there
        world.evict_stripe()
        missed = Reader(world, world.replica()).read()
        one.apply()
        return missed, Reader(world, world.replica()).read()

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(fill, "_find_wanted", lambda *_: ())

    prove_use(schedule, (ReadOutcome.STRIPE_ABSENT, ReadOutcome.FILLED), plant, monkeypatch)


def test_the_keys_of_one_stripe_wait_for_each_other() -> None:
    """F91: another key is changed, and a replica that lags by that change is refused; with more stripes it is not."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(lookup(9).item)
        one.apply()
        return Reader(world, world.replica()).read(lookup(2))

    assert schedule(World()) is ReadOutcome.STRIPE
    assert schedule(World(stripes=16)) is ReadOutcome.FILLED


def test_what_an_invalidator_missed_is_put_back_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """F98: as above, and no reader has come yet."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        one.look()  # the list of missing stripes is there
        world.evict_stripe()
        send(one)
        one.apply()
        return Reader(world, world.replica().catch_up()).read()

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(invalidate, "encode_wanted", lambda _: b"")

    prove_use(schedule, ReadOutcome.FILLED, plant, monkeypatch)


def test_a_key_of_a_new_shard_is_cacheable_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """F96: a reshard gives a key that is written all the time to a shard with its own history. The stripes of the
    old shard demand positions that no token names any more, and are not read."""
    moved = lookup(policy=replace(CUSTOMER, lineages=(OTHER,)))

    def schedule(world: World) -> list[ReadOutcome]:
        source, target = start(world), start(world, lineage=OTHER)
        world.commit(KEY)
        source.apply()
        outcomes = []
        for _ in range(3):
            world.databases[OTHER].commit(KEY)
            target.apply()
            source.apply()
            outcomes.append(Reader(world, [Replica(world.databases[OTHER]).catch_up()]).read(moved))
        return outcomes

    def of_both(policy: Any, ring: int, records: Any, stripes: Any, tokens: Any) -> ReadOutcome | None:
        return find_fill_refusal(replace(policy, lineages=(LINEAGE, OTHER)), ring, records, stripes, tokens)

    lineages = LINEAGE, OTHER
    assert schedule(World(lineages=lineages)) == [ReadOutcome.FILLED] * 3
    monkeypatch.setattr(fill, "find_fill_refusal", of_both)
    assert ReadOutcome.FILLED not in schedule(World(lineages=lineages))


# -- two names of one server -----------------------------------------------------------------------------


def test_two_names_of_one_server_share_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """F94: the name of one node comes to mean the server of another. The member of the one acknowledges a batch
    in which there are keys of the other, too; these were not sent."""
    other = lookup(2, node="n2")

    def schedule(world: World) -> ReadOutcome:
        world.places[other.item] = "n2"
        world.stores["n2"] = world.stores["n1"]
        one = start(world)
        two = Invalidator(world, node="n2")
        two.joining().until(lambda _: False, may_end=True)
        if world.record().node == "n1":  # the member of n2 has taken the record for its own
            two.apply()
        Reader(world, world.replica()).read(other)
        world.commit(KEY, other.item)
        go_on(one.applying())
        return Reader(world, world.replica()).read(other)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        def of_any_name(reply: Reply, _: str) -> NodeRecord | None:
            return NodeRecord.decode(reply.value) if isinstance(reply, Item) else None

        for module in ("membership", "admission", "restore", "view"):
            patch.setattr(f"freshness.algorithm.{module}.find_record", of_any_name)

    prove(schedule, ReadOutcome.CLOSED, plant, "I1", monkeypatch, nodes=("n1", "n2"))
