"""What becomes of reads: every outcome, what is stored, what is left behind, and the order of the requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from freshness.algorithm.envelope import (
    STUB,
    Filled,
    PendingStripe,
    Stripe,
    decode_wanted,
    record_key,
    resume_key,
    stripe_key,
    stripe_number,
    wanted_key,
)
from freshness.algorithm.lookup import Lookup, ReadServer
from freshness.algorithm.read import LEASE_POLLS_MAX, read_through
from freshness.algorithm.request import (
    LATEST,
    MISSING,
    Add,
    Append,
    Cas,
    Delete,
    Flows,
    Get,
    Item,
    Load,
    Step,
    Stored,
    Wait,
)
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.algorithm.shortway import find_hit, find_hits
from freshness.algorithm.state import Read
from freshness.position import MysqlGtidSet, empty_position
from freshness.position.token import EventToken
from tests.schedules.world import (
    CUSTOMER,
    KEY,
    L_SECONDS,
    LINEAGE,
    MAX_STALENESS_SECONDS,
    NAMESPACE,
    NODE,
    ORDER,
    START_SECONDS,
    STRIPES,
    Invalidator,
    Reader,
    ReadRows,
    ReadToken,
    Replica,
    Run,
    World,
    is_fill,
    lookup,
    version_of,
)

OTHER = "shop/b"
STRIPE = stripe_key(NAMESPACE, LINEAGE, stripe_number(KEY, STRIPES))
WANTED = wanted_key(NAMESPACE, LINEAGE)
COMMITS = {LINEAGE: EventToken(LINEAGE, "-", 1, 0, empty_position("mysql"))}
PAIR = ObjectPolicy("pair", 8, ("customers",), (LINEAGE, OTHER), 3600)


def start(world: World, **changes: Any) -> Invalidator:
    one = Invalidator(world, **changes).join()
    one.apply()
    return one


def a_reader(world: World, **changes: Any) -> Reader:
    return Reader(world, world.replica().catch_up(), **changes)


def replace_record(world: World, **changes: Any) -> None:
    key = record_key(NAMESPACE, LINEAGE)
    record = replace(world.record(), **changes)
    reply = world.stores[NODE].answer(Cas(key, record.encode(), version_of(world, key), 4))
    assert isinstance(reply, Stored)


def replace_life(world: World, life: bytes) -> None:
    """Another life begins, and its stripes are put back."""
    replace_record(world, life=life)
    for number in range(STRIPES):
        put(world, Stripe(life, world.database.base).encode(), stripe_key(NAMESPACE, LINEAGE, number))


def put(world: World, value: bytes, key: bytes = KEY, ttl_seconds: int = 60) -> None:
    world.stores[NODE].evict(key)
    assert isinstance(world.stores[NODE].answer(Add(key, value, ttl_seconds)), Stored)


def entry_of(world: World) -> Item:
    item = world.stores[NODE].peek(KEY)
    assert item is not None
    return item


# -- hits ----------------------------------------------------------------------------------------------


def test_a_filled_entry_is_a_hit() -> None:
    world = World()
    start(world)
    made = world.commit(KEY)
    reader = a_reader(world)
    (filled,) = reader.reading().finish()
    assert filled.outcome is ReadOutcome.FILLED
    assert filled.value == [made.number]
    assert filled.tokens[LINEAGE].position == world.database.head
    run = reader.reading()
    assert run.finish() == [Read(ReadOutcome.HIT, payload=json.dumps([made.number]).encode())]
    assert len(run.steps) == 1
    entry = Filled.decode(entry_of(world).value)
    assert entry.identity == lookup().identity
    assert [stamp.position for stamp in entry.stamps] == [world.database.head]
    assert entry.stamps[0].life == world.record().life


def test_an_absent_row_is_a_value() -> None:
    """F43: it is stored with its position like any other, and invalidated by the insert."""
    world = World()
    one = start(world)
    world.absent.add(KEY)
    reader = a_reader(world)
    (first,), (second,) = reader.reading().finish(), reader.reading().finish()
    assert (first.outcome, first.value) == (ReadOutcome.FILLED, None)
    assert second == Read(ReadOutcome.HIT, payload=None)
    assert second.is_hit
    world.absent.clear()
    made = world.commit(KEY)
    one.apply()
    (third,) = a_reader(world).reading().finish()
    assert third.value == [made.number]


def test_an_absent_row_is_not_stored_where_the_key_has_several_spellings() -> None:
    """F24: the row that appears may be invalidated under another spelling."""
    world = World()
    start(world)
    world.absent.add(KEY)
    assert a_reader(world).read(lookup(is_exact=False)) is ReadOutcome.KEY
    assert world.stores[NODE].peek(KEY) is None
    world.absent.clear()
    assert a_reader(world).read(lookup(is_exact=False)) is ReadOutcome.FILLED


def test_many_keys_on_many_nodes_are_answered_in_order() -> None:
    world = World(nodes=("n1", "n2"))
    start(world)
    start(world, node="n2")
    lookups = [lookup(number, node="n1" if number % 2 else "n2") for number in range(6)]
    for one in lookups:
        world.places[one.item] = one.node
        world.commit(one.item)
    reader = a_reader(world)
    first = reader.reading(*lookups)
    assert [read.value for read in first.finish()] == [[11], [12], [13], [14], [15], [16]]
    second = reader.reading(*lookups)
    assert [json.loads(read.payload or b"") for read in second.finish()] == [[11], [12], [13], [14], [15], [16]]
    assert len(second.steps) == 1
    assert [len(step.flows) for step in second.steps if isinstance(step, Flows)] == [2]


def test_no_lookup_is_no_request() -> None:
    world = World()
    reader = a_reader(world)
    run = Run(world, read_through(reader.context, []), reader.client)
    assert run.finish() == []
    assert run.steps == [Flows(())]


# -- order ---------------------------------------------------------------------------------------------


def test_requests_come_in_the_order_of_the_proof() -> None:
    """docs/algorithm.md#reading: records, then entries; stripes, then records; the token, the rows, the CAS."""
    world = World()
    start(world)
    two = lookup(2)
    reader = a_reader(world)
    run = reader.reading(lookup(), two)
    done: list[object] = []
    while run.pending is not None:
        if not isinstance(run.pending, Load):
            done.append(run.pending)
        run.advance()
    record = record_key(NAMESPACE, LINEAGE)
    assert [
        (type(action).__name__, getattr(action, "key", b"").decode().removeprefix("shop:")) for action in done
    ] == [
        ("Get", record.decode().removeprefix("shop:")),
        ("Get", "customer:1"),
        ("Get", "customer:2"),
        ("Get", f"!shop/-!{stripe_number(KEY, STRIPES):x}"),
        ("Get", f"!shop/-!{stripe_number(two.item, STRIPES):x}"),
        ("Get", record.decode().removeprefix("shop:")),
        ("ReadToken", ""),
        ("ReadRows", ""),
        ("Cas", "customer:1"),
        ("Cas", "customer:2"),
    ]
    guards = run.steps[1]
    assert isinstance(guards, Flows)
    assert len(guards.flows) == 1, "stripes and records travel in one flow"
    assert not any(isinstance(action, Add) for action in done), "a reader never adds"


def test_guards_are_never_taken_from_a_copy() -> None:
    world = World()
    start(world)
    reader = a_reader(world)
    reader.read(lookup(2))
    run = reader.reading().until(is_fill)
    first, second = (step for step in run.steps[:2] if isinstance(step, Flows))
    assert [type(request) for request in first.flows[0].requests] == [Get]
    assert Get(record_key(NAMESPACE, LINEAGE), is_bound=True) in second.flows[0].requests


# -- every refusal -------------------------------------------------------------------------------------


def test_stripe() -> None:
    world = World()
    one = start(world)
    world.commit(KEY)
    one.apply()
    assert Reader(world, world.replica()).read() is ReadOutcome.STRIPE


REPLICA, PRIMARY = ({LINEAGE: ReadServer(f"10.0.0.{number}:3306", number == 9)} for number in (1, 9))


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_a_server_that_lacks_what_is_required_is_told_from_the_primary(flavor: str) -> None:
    """A primary of MariaDB shows more than is known of it, so its row has all that was acknowledged. One of MySQL
    that lacks it is the previous primary, which the file still names."""
    world = World(flavor=flavor)
    one = start(world)
    world.commit(KEY)
    one.apply()
    of_primary = ReadOutcome.STRIPE if flavor == "mariadb" else ReadOutcome.BOUNDED
    for servers, outcome in ((REPLICA, ReadOutcome.BOUNDED), (PRIMARY, of_primary)):
        world.servers = servers
        (read,) = Reader(world, world.replica()).reading().finish()
        assert (read.outcome, read.servers, read.shows_required) == (outcome, servers, False)
        assert world.stores[NODE].peek(KEY) is None, "the stub is dropped for the next reader"
    world.servers = REPLICA
    (read,) = a_reader(world).reading().finish()
    assert (read.outcome, read.servers) == (ReadOutcome.FILLED, REPLICA)


def test_a_bounded_read_is_told_whatever_else_was_in_the_way_of_its_fill() -> None:
    world = World()
    one = start(world)
    world.servers = REPLICA
    late = Reader(world, world.replica())
    assert late.read() is ReadOutcome.FILLED
    world.evict_stripe()
    world.commit(lookup(2).item)
    one.apply()
    assert late.read(max_staleness_seconds=0) is ReadOutcome.BOUNDED, "the hit was too stale for its caller"
    world.stores[NODE].evict(KEY)
    assert late.read() is ReadOutcome.BOUNDED
    assert noted(world) == [stripe_number(KEY, STRIPES)], "its stripe is put back all the same"
    assert a_reader(world).read() is ReadOutcome.STRIPE_ABSENT, "this replica has all"


def test_if_the_node_says_nothing_the_primary_is_asked_for() -> None:
    world = World()
    start(world)
    reader = a_reader(world)
    world.stores[NODE].down = True
    assert asked_of(reader) == [{}, {}]
    reader.context.on_unknown = "primary"
    assert asked_of(reader) == [{LINEAGE: LATEST}] * 2
    for servers, outcome in ((REPLICA, ReadOutcome.BOUNDED), (PRIMARY, ReadOutcome.NODE_DOWN)):
        world.servers = servers
        (read,) = reader.reading().finish()
        assert (read.outcome, read.shows_required) == (outcome, False)
    world.servers = REPLICA
    replica = world.replica()
    replica.gives_token = False
    silent = Reader(world, replica)
    silent.context.on_unknown = "primary"
    assert silent.read() is ReadOutcome.BOUNDED
    world.stores[NODE].down = False
    reader.context.views.clear()
    assert asked_of(reader, count=1)[0][LINEAGE].position.contains(world.database.base)


def test_of_two_lineages_the_primary_is_asked_for_in_the_one_that_the_node_says_nothing_of() -> None:
    """The invalidator of the other one does not cover the object."""
    world = World(lineages=(LINEAGE, OTHER))
    start(world, objects={PAIR.name: PAIR.fingerprint})
    start(world, lineage=OTHER)
    reader = read_pair(world)
    reader.context.on_unknown = "primary"
    (asked,) = asked_of(reader, lookup(1, PAIR), count=1)
    assert (asked[OTHER], asked[LINEAGE] is LATEST) == (LATEST, False)


def asked_of(reader: Reader, *lookups: Lookup, count: int = 2) -> list[dict[str, EventToken]]:
    run = reader.reading(*(lookups or (lookup(1), lookup(2))[:count])).until_kind(ReadToken)
    step = run.steps[-1]
    run.finish()
    assert isinstance(step, Load)
    return [dict(one.required) for one in step.lookups]


def test_what_a_row_of_another_spelling_lacks_is_not_known() -> None:
    world = World()
    one = start(world)
    world.commit(KEY)
    one.apply()
    world.servers, world.loader_refusal = REPLICA, ReadOutcome.KEY
    assert Reader(world, world.replica()).read() is ReadOutcome.KEY


def neighbour(*, shares: bool) -> Lookup:
    """Another key, which shares the stripe of `KEY` or does not."""
    return next(
        one
        for one in (lookup(number) for number in range(2, 1000))
        if (stripe_number(one.item, STRIPES) == stripe_number(KEY, STRIPES)) is shares
    )


@pytest.mark.parametrize(("shares", "outcome"), [(True, ReadOutcome.STRIPE), (False, ReadOutcome.FILLED)])
def test_a_key_waits_for_the_invalidations_of_its_stripe_alone(shares: bool, outcome: ReadOutcome) -> None:
    world = World()
    one = start(world)
    world.commit(neighbour(shares=shares).item)
    one.apply()
    assert Reader(world, world.replica()).read() is outcome
    assert a_reader(world).read() is (ReadOutcome.FILLED if shares else ReadOutcome.HIT)


def noted(world: World) -> list[int]:
    held = world.stores[NODE].peek(WANTED)
    return [] if held is None else decode_wanted(held.value)


def test_stripe_absent() -> None:
    """The reader notes the stripe, for the invalidator to put it back first."""
    world = World()
    one = start(world)
    world.evict_stripe()
    assert a_reader(world).read() is ReadOutcome.STRIPE_ABSENT
    assert world.stores[NODE].peek(KEY) is None, "the stub is dropped for the next reader"
    assert noted(world) == [stripe_number(KEY, STRIPES)]
    one.apply()
    assert a_reader(world).read() is ReadOutcome.FILLED
    assert noted(world) == []


def test_a_stripe_that_goes_behind_the_guards_protects_no_less() -> None:
    """The fill is of a read that had all of it; what comes later deletes the stub."""
    world = World()
    one = start(world)
    run = Reader(world, world.replica()).reading().until(is_fill)
    world.evict_stripe()
    world.commit(KEY)
    one.applying().finish()
    assert run.finish()[0].outcome is ReadOutcome.LOST_RACE
    assert world.broken == []


@pytest.mark.parametrize(
    "data",
    [
        PendingStripe(b"NONCE...").encode(),
        b"not ours",
        b"",
        Stripe(b"PREVIOUS", World().database.base).encode(),
        b"\xfa\x01\x03" + Stripe(b"LIFELIFE", World().database.base).encode()[3:],
    ],
    ids=["pending", "foreign", "stub", "previous life", "previous release"],
)
def test_all_that_is_no_stripe_of_this_life_is_no_stripe(data: bytes) -> None:
    world = World()
    start(world)
    put(world, data, STRIPE)
    assert a_reader(world).read() is ReadOutcome.STRIPE_ABSENT
    assert noted(world) == [stripe_number(KEY, STRIPES)]
    held = world.stores[NODE].peek(STRIPE)
    assert held is not None
    assert held.value == data, "readers write no stripes"


def test_hits_need_no_stripe() -> None:
    world = World()
    start(world)
    assert a_reader(world).read() is ReadOutcome.FILLED
    world.evict_stripe()
    assert a_reader(world).read() is ReadOutcome.HIT


def test_all_missing_stripes_of_a_call_are_noted_in_one_flow() -> None:
    world = World()
    start(world)
    world.stores[NODE].evict(WANTED)
    put(world, STUB, WANTED)
    lookups = [lookup(number) for number in range(1, 4)]
    numbers = [stripe_number(one.item, STRIPES) for one in lookups]
    for number in set(numbers):
        world.stores[NODE].evict(stripe_key(NAMESPACE, LINEAGE, number))
    run = a_reader(world).reading(*lookups)
    assert [read.outcome for read in run.finish()] == [ReadOutcome.STRIPE_ABSENT] * 3
    assert noted(world) == numbers
    last = run.steps[-1]
    assert isinstance(last, Flows)
    assert [type(request) for request in last.flows[0].requests] == [Delete, Delete, Delete, Append]


def test_a_list_of_wanted_stripes_that_is_not_there_is_no_harm() -> None:
    world = World()
    start(world)
    world.stores[NODE].evict(WANTED)
    world.evict_stripe()
    assert a_reader(world).read() is ReadOutcome.STRIPE_ABSENT
    assert world.stores[NODE].peek(WANTED) is None


def test_floor() -> None:
    world = World()
    world.commit()
    start(world)
    assert Reader(world, world.replica()).read() is ReadOutcome.FLOOR


def test_table_floor_of_a_fill_and_of_a_hit() -> None:
    world = World()
    one = start(world)
    assert a_reader(world).read() is ReadOutcome.FILLED
    made = world.commit(raised=["customers"])
    one.apply()
    before = version_of(world, KEY)
    assert Reader(world, world.replica()).read() is ReadOutcome.TABLE_FLOOR
    assert world.stores[NODE].peek(KEY) is None, "what can never be a hit again was claimed, and dropped"
    assert Reader(world, world.replica(made)).read() is ReadOutcome.FILLED
    assert version_of(world, KEY) > before


def test_object() -> None:
    world = World()
    start(world)
    assert a_reader(world).read(lookup(1, ORDER)) is ReadOutcome.OBJECT


def test_epoch() -> None:
    world = World()
    start(world)
    world.database.epoch = 2
    assert a_reader(world).read() is ReadOutcome.EPOCH


def test_ring() -> None:
    world = World()
    start(world)
    assert a_reader(world).read() is ReadOutcome.FILLED
    reader = a_reader(world, ring=8)
    assert reader.read() is ReadOutcome.RING
    assert a_reader(world, ring=8, on_stale="serve").read() is ReadOutcome.RING


def test_closed() -> None:
    world = World()
    Invalidator(world).join()
    assert a_reader(world).read() is ReadOutcome.CLOSED


def test_no_record() -> None:
    world = World()
    reader = a_reader(world)
    assert reader.read() is ReadOutcome.NO_RECORD
    assert world.stores[NODE].keys() == []
    run = reader.reading()
    assert run.pending == Get(KEY, 0), "where nothing will be stored, no stub is left"
    assert run.finish()[0].outcome is ReadOutcome.NO_RECORD


@pytest.mark.parametrize("damage", [b"", b"\xfa\x02\x04", b"somebody else's"])
def test_a_record_that_does_not_parse_vouches_for_nothing(damage: bytes) -> None:
    world = World()
    put(world, damage, record_key(NAMESPACE, LINEAGE))
    world.check = lambda: None  # type: ignore[method-assign]
    assert a_reader(world).read() is ReadOutcome.NO_RECORD


@pytest.mark.parametrize("changes", [{"lineage": "shop/elsewhere"}, {"node": "n2"}], ids=["lineage", "node"])
def test_a_record_of_another_lineage_or_node_vouches_for_nothing(changes: dict[str, str]) -> None:
    """Two names of one server would place the same key twice (F94)."""
    world = World()
    start(world)
    replace_record(world, **changes)
    world.check = lambda: None  # type: ignore[method-assign]
    assert a_reader(world).read() is ReadOutcome.NO_RECORD


def test_life() -> None:
    """The node is flushed and admitted between stub and guards; a stub is there all the same."""
    world = World()
    one = start(world)
    run = a_reader(world).reading().until_kind(Get, key=STRIPE)
    replace_record(world, life=b"ANOTHER!")
    assert run.finish()[0].outcome is ReadOutcome.LIFE
    assert world.stores[NODE].peek(KEY) is None
    assert one.member.is_joined


def test_dead() -> None:
    """An entry of a previous life is claimed and refilled; if the claim fails, the read is not stored."""
    world = World()
    start(world)
    assert a_reader(world).read() is ReadOutcome.FILLED
    replace_life(world, b"ANOTHER!")
    assert a_reader(world).read() is ReadOutcome.FILLED
    replace_life(world, b"ANOTHER.")
    run = a_reader(world).reading().until_kind(Cas)
    assert isinstance(run.pending, Cas)
    assert run.pending.value == STUB
    world.stores[NODE].evict(KEY)
    assert run.finish()[0].outcome is ReadOutcome.DEAD
    assert world.stores[NODE].peek(KEY) is None


def test_a_claim_that_its_node_did_not_answer_is_not_filled() -> None:
    world = World()
    start(world)
    a_reader(world).read()
    replace_record(world, life=b"ANOTHER!")
    run = a_reader(world).reading().until_kind(Cas)
    run.lose_reply()
    assert run.finish()[0].outcome is ReadOutcome.NODE_DOWN
    assert entry_of(world).value == STUB, "the claim had been carried out; the stub expires by itself"


def test_lost_race() -> None:
    world = World()
    one = start(world)
    run = a_reader(world).reading().until(is_fill)
    world.commit(KEY)
    one.apply()
    assert run.finish()[0].outcome is ReadOutcome.LOST_RACE
    assert world.stores[NODE].peek(KEY) is None


def test_a_stub_that_could_not_be_made_is_no_fill() -> None:
    """A node without memory answers "absent" even to a request for a stub."""
    world = World()
    start(world)
    world.answer_instead = lambda _, request: MISSING if request == Get(KEY, 10) else None
    assert a_reader(world).read() is ReadOutcome.LOST_RACE
    assert world.stores[NODE].peek(KEY) is None


def test_stale() -> None:
    """A caller's own bound, for this read only."""
    world = World()
    start(world)
    reader = a_reader(world)
    assert reader.read() is ReadOutcome.FILLED
    world.sleep(2.5)
    assert reader.read(max_staleness_seconds=9) is ReadOutcome.HIT
    assert reader.read(max_staleness_seconds=2) is ReadOutcome.STALE
    assert reader.read() is ReadOutcome.HIT
    assert Filled.decode(entry_of(world).value), "the entry is not at fault and stays"


def test_guards_that_took_long_to_come_are_as_old_as_their_question() -> None:
    """F58: the reader stood still between asking and being answered."""
    world = World()
    one = start(world)
    reader = a_reader(world)
    run = reader.reading().until_kind(Get, key=STRIPE)
    asked_at = world.now
    one.live(0.5)
    run.finish()
    assert reader.context.views[NODE].fetched_at == asked_at


def test_a_fill_is_held_to_the_record_of_after_its_stub() -> None:
    """I1: a statement on the whole table is acknowledged between the stub and the stripe."""
    world = World()
    one = start(world)
    run = Reader(world, world.replica()).reading().until_kind(Get, key=STRIPE)
    world.commit(raised=("customers",))
    one.apply()
    assert run.finish()[0].outcome is ReadOutcome.TABLE_FLOOR


def test_an_entry_that_came_late_is_not_judged_by_a_record_that_is_younger_than_it_seems() -> None:
    """F58: the reader stood still after its question for longer than a record may be trusted."""
    world = World()
    start(world)
    reader = a_reader(world)
    assert reader.read() is ReadOutcome.FILLED
    run = reader.reading().until_kind(Get, key=KEY)
    world.sleep(1.5)
    assert run.finish()[0].outcome is ReadOutcome.NO_RECORD


def take_many(world: World, reader: Reader, entry: bytes, seconds: float) -> list[Read | None]:
    """What the short way for many keys makes of this entry, which comes after that time."""
    taking = find_hits(reader.context, [lookup()])
    assert isinstance(next(taking), Flows)
    world.sleep(seconds)
    with pytest.raises(StopIteration) as end:
        taking.send([[entry]])
    found: list[Read | None] = end.value.value
    return found


def test_the_short_way_of_a_hit_stands_still_no_longer_either() -> None:
    world = World()
    start(world)
    reader = a_reader(world)
    assert reader.read() is ReadOutcome.FILLED
    entry = entry_of(world).value

    def get_after(seconds: float) -> Callable[[bytes], bytes]:
        def get(_: bytes) -> bytes:
            world.sleep(seconds)
            return entry

        return get

    found = find_hit(reader.context, lookup(), get_after(0.5))
    assert found is not None
    assert found.is_hit
    assert reader.read() is ReadOutcome.HIT
    assert find_hit(reader.context, lookup(), get_after(1.5)) is None
    assert reader.read() is ReadOutcome.HIT
    assert take_many(world, reader, entry, 0.5) == [found]
    assert reader.read() is ReadOutcome.HIT
    assert take_many(world, reader, entry, 1.5) == [None]


def test_the_short_way_knows_that_a_node_is_closed() -> None:
    world = World()
    start(world)
    reader = a_reader(world)
    assert reader.read() is ReadOutcome.FILLED
    replace_record(world, is_open=False)
    world.sleep(1.0)
    for _ in range(2):  # the second time by a copy of the record
        assert reader.read() is ReadOutcome.CLOSED
    assert find_hit(reader.context, lookup(), lambda _: entry_of(world).value) is None
    assert take_many(world, reader, entry_of(world).value, 0.0) == [None]


def test_two_keys_of_one_item_are_two_reads() -> None:
    """F24, F45: the second one is answered by the database, with its own row."""
    world = World()
    start(world)
    other = replace(lookup(), identity=lookup().identity + b" ", values=(1.0,))
    first, second, again = a_reader(world).reading(lookup(), other, lookup()).finish()
    assert (first.outcome, second.outcome) == (ReadOutcome.FILLED, ReadOutcome.IDENTITY)
    assert again is first


def test_a_bound_is_no_obstacle_where_the_node_is_fresh() -> None:
    world = World()
    one = start(world)
    reader = a_reader(world)
    reader.read()
    one.live(3)
    one.apply()
    assert reader.read(max_staleness_seconds=L_SECONDS) is ReadOutcome.HIT


def test_a_heartbeat_that_a_reader_sees_for_too_long_vouches_for_nothing() -> None:
    """F105: the node's clock stands still, and no lease ends there."""
    world = World()
    world.stores[NODE].clock = lambda: START_SECONDS
    one = start(world)
    reader, late = a_reader(world), a_reader(world)
    assert reader.read() is ReadOutcome.FILLED
    world.sleep(MAX_STALENESS_SECONDS)
    assert reader.read() is ReadOutcome.HIT, "no longer than a heartbeat may be old"
    world.sleep(1)
    assert reader.read() is ReadOutcome.CLOCK
    assert late.read() is ReadOutcome.HIT, "it cannot know"
    one.join()
    one.apply()
    world.sleep(1)
    assert reader.read() is ReadOutcome.HIT, "another heartbeat"


@pytest.mark.parametrize(("ahead_seconds", "outcome"), [(45, ReadOutcome.HIT), (76, ReadOutcome.CLOCK)])
def test_a_heartbeat_that_is_too_old_by_the_readers_clock_vouches_for_nothing(
    ahead_seconds: float, outcome: ReadOutcome
) -> None:
    """F105. A clock that is wrong costs hits, and stale values are served for it by choice alone."""
    world = World()
    start(world)
    assert a_reader(world).read() is ReadOutcome.FILLED
    assert a_reader(world, clock_error_seconds=ahead_seconds).read() is outcome
    assert a_reader(world, clock_error_seconds=-3600).read() is ReadOutcome.HIT, "it never allows, nor forbids"
    if outcome is ReadOutcome.CLOCK:
        reader = a_reader(world, clock_error_seconds=ahead_seconds, on_stale="serve")
        assert reader.read() is ReadOutcome.STALE_SERVED


def test_only_the_lineages_of_an_object_must_have_a_young_heartbeat() -> None:
    world = World(lineages=(LINEAGE, "shop/b"))
    for lineage in world.databases:
        Invalidator(world, lineage=lineage).join().apply()
    reader = Reader(world, [Replica(each).catch_up() for each in world.databases.values()])
    assert reader.read() is ReadOutcome.FILLED
    world.stores[NODE].clock = lambda: START_SECONDS
    world.sleep(MAX_STALENESS_SECONDS + 1)
    Invalidator(world).join().apply()
    assert reader.read() is ReadOutcome.HIT
    both = lookup(2, replace(CUSTOMER, lineages=tuple(world.databases)))
    assert reader.read(both) is ReadOutcome.CLOCK


@pytest.mark.parametrize("at", [0, 1, 2])
def test_node_down(at: int) -> None:
    """F11: in the look-up, at the guards, at the fill: never a miss, never an error, and not stored."""
    world = World()
    start(world)
    kinds: list[Callable[[object], bool]] = [
        lambda action: isinstance(action, Get),
        lambda action: isinstance(action, Get) and action.key == STRIPE,
        lambda action: isinstance(action, Cas),
    ]
    run = a_reader(world).reading().until(kinds[at])
    world.stores[NODE].down = True
    (read,) = run.finish()
    assert read.outcome is ReadOutcome.NODE_DOWN
    assert read.value == []
    world.stores[NODE].down = False
    held = world.stores[NODE].peek(KEY)
    assert held is None or held.value == STUB


def test_a_fill_whose_answer_is_lost_may_have_happened() -> None:
    world = World()
    start(world)
    run = a_reader(world).reading().until(is_fill)
    run.lose_reply()
    assert run.finish()[0].outcome is ReadOutcome.NODE_DOWN
    assert a_reader(world).read() is ReadOutcome.HIT


def test_one_node_down_does_not_keep_the_others_from_answering() -> None:
    world = World(nodes=("n1", "n2", "n3"))
    for node in world.stores:
        start(world, node=node)
    lookups = [lookup(number, node=f"n{number}") for number in (1, 2, 3)]
    for one in lookups:
        world.places[one.item] = one.node
    reader = a_reader(world)
    reader.reading(*lookups).finish()
    world.stores["n2"].down = True
    outcomes = [read.outcome for read in reader.reading(*lookups).finish()]
    assert outcomes == [ReadOutcome.HIT, ReadOutcome.NODE_DOWN, ReadOutcome.HIT]
    world.stores["n2"].down = False
    outcomes = [read.outcome for read in reader.reading(*lookups).finish()]
    assert outcomes == [ReadOutcome.HIT] * 3


@pytest.mark.parametrize(
    "value", [b"x", b"\xfa\x02", b"\xfa\x01\x01previous", b"\xfa\x03\x01later", b"\xfa\x02\x01cut"]
)
def test_foreign_bytes_are_no_hit_and_never_overwritten(value: bytes) -> None:
    """F42, F44."""
    world = World()
    start(world)
    put(world, value)
    version = version_of(world, KEY)
    (read,) = a_reader(world).reading().finish()
    assert (read.outcome, read.value) == (ReadOutcome.FOREIGN, [])
    assert (entry_of(world).value, version_of(world, KEY)) == (value, version)


def test_identity() -> None:
    """F45, F46: two keys that share an item push one another out, and never answer for one another."""
    world = World()
    start(world)
    other = replace(lookup(), identity=b"another")
    assert a_reader(world).read() is ReadOutcome.FILLED
    assert a_reader(world).read(other) is ReadOutcome.FILLED
    assert a_reader(world).read(other) is ReadOutcome.HIT
    run = a_reader(world).reading().until_kind(Cas)
    world.stores[NODE].evict(KEY)
    assert run.finish()[0].outcome is ReadOutcome.IDENTITY, "the claim failed, and nothing is stored"


def test_no_token() -> None:
    world = World()
    start(world)
    replica = world.replica()
    replica.gives_token = False
    assert Reader(world, replica).read() is ReadOutcome.NO_TOKEN


def test_too_large() -> None:
    world = World()
    start(world)
    world.stores[NODE].item_size_max = 120
    assert a_reader(world).read() is ReadOutcome.TOO_LARGE
    assert world.stores[NODE].peek(KEY) is None


def test_the_loaders_own_refusal() -> None:
    world = World()
    start(world)
    world.loader_refusal = ReadOutcome.NO_TOKEN
    (read,) = a_reader(world).reading().finish()
    assert (read.outcome, read.value) == (ReadOutcome.NO_TOKEN, [])
    assert world.stores[NODE].peek(KEY) is None


# -- entries of the node that held the key before ---------------------------------------------------------


def start_moved() -> tuple[World, Invalidator, Invalidator, Reader, Lookup]:
    """The key was on one node, which has its entry, and is on the other now."""
    world = World(nodes=("n1", "n2"))
    first, second = (start(world, node=node) for node in world.stores)
    assert a_reader(world).read() is ReadOutcome.FILLED
    second.apply()
    first.apply()
    reader = a_reader(world)
    reader.context.previous_ring = reader.ring
    return world, first, second, reader, lookup(node="n2", previous_node="n1")


def test_an_entry_that_moves_keeps_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """I11: it may have what the progress of its node lacks."""
    far = MysqlGtidSet.parse("3e11fa47-71ca-11e1-9e33-c80aa9429562:99")
    monkeypatch.setattr(World, "find_until", lambda _, token, __: token.position.union(far))
    world, _, _, reader, moved = start_moved()
    assert reader.read(moved) is ReadOutcome.MOVED
    stamps = [Filled.decode(item.value).stamps[0] for store in world.stores.values() if (item := store.peek(KEY))]
    assert [stamp.until is not None and stamp.until.contains(far) for stamp in stamps] == [True, True]


def test_an_entry_is_moved_to_the_present_node() -> None:
    world, _, _, reader, moved = start_moved()
    world.sleep(2)
    (read,) = reader.reading(moved).finish()
    assert (read.outcome, read.payload) == (ReadOutcome.MOVED, b"[]")
    assert read.is_hit
    before, held = (store.peek(KEY) for store in world.stores.values())
    assert before is not None
    assert held is not None
    assert 0 < held.ttl_seconds <= before.ttl_seconds + 1, "nodes round up"
    assert reader.read(moved) is ReadOutcome.HIT


@pytest.mark.parametrize("changes", [{"is_open": False}, {"ring": 8}, {"primary": "another"}, {"epoch": 2}])
def test_an_entry_is_not_moved_if_its_node_does_not_vouch_for_it(changes: dict[str, Any]) -> None:
    world, _, _, reader, moved = start_moved()
    replace_record(world, **changes)
    assert reader.read(moved) is ReadOutcome.FILLED


def test_an_entry_that_lacks_what_the_present_node_demands_is_not_moved() -> None:
    world, _, second, reader, moved = start_moved()
    world.places[KEY] = "n2"
    world.commit(KEY)
    second.apply()
    assert reader.read(moved) is ReadOutcome.STRIPE


def test_an_entry_is_not_moved_for_a_call_that_demands_more() -> None:
    world, _, _, reader, moved = start_moved()
    world.sleep(1)
    assert reader.read(moved, max_staleness_seconds=0.5) is ReadOutcome.FILLED


def test_an_entry_is_not_moved_for_a_caller_whose_commit_it_lacks() -> None:
    world, _, _, reader, moved = start_moved()
    world.commit(KEY)
    replica = world.replica().catch_up()
    reader.replicas = replica
    assert reader.read(moved, at_least={LINEAGE: replica.token()}) is ReadOutcome.FILLED
    assert world.broken == []


def test_the_previous_node_need_not_answer() -> None:
    world, _, _, reader, moved = start_moved()
    world.stores["n1"].down = True
    assert reader.read(moved) is ReadOutcome.FILLED


def test_every_outcome_is_under_test() -> None:
    """This file names them all; one that is added must be reached here. ReadOutcome.BEHIND is reached in
    tests/schedules/test_at_least.py, ReadOutcome.PARTS in tests/schedules/test_parts.py, ReadOutcome.LOCAL_HIT in
    tests/unit/appclient/reading/test_copies.py, ReadOutcome.TOGETHER in tests/schedules/test_together.py, and
    ReadOutcome.OWN_TRANSACTION in tests/unit/appclient/connection/test_own.py."""
    with open(__file__, encoding="utf-8") as source:
        text = source.read()
    assert [outcome.name for outcome in ReadOutcome if f"ReadOutcome.{outcome.name}" not in text] == []


# -- leases --------------------------------------------------------------------------------------------


def test_a_loser_waits_for_the_winner() -> None:
    world = World()
    start(world)
    winner = a_reader(world).reading().until_kind(ReadRows)
    loser = a_reader(world).reading().until_kind(Wait)
    assert winner.finish()[0].outcome is ReadOutcome.FILLED
    assert loser.finish()[0].outcome is ReadOutcome.HIT
    assert not any(isinstance(step, Load) for step in loser.steps)


def test_a_loser_waits_no_longer_than_its_bound_and_fills_itself() -> None:
    """F41, F72: the winner is dead; nothing depends on it."""
    world = World()
    start(world)
    a_reader(world).reading().until_kind(ReadRows)
    loser = a_reader(world).reading()
    (read,) = loser.finish()
    assert read.outcome is ReadOutcome.FILLED
    waits = [step for step in loser.steps if isinstance(step, Wait)]
    assert len(waits) == LEASE_POLLS_MAX
    assert sum(step.seconds for step in waits) == pytest.approx(0.05)
    assert a_reader(world).read() is ReadOutcome.HIT


@pytest.mark.parametrize(
    ("demand", "waits"), [({}, False), ({"max_staleness_seconds": 5.0}, True), ({"at_least": COMMITS}, True)]
)
def test_a_loser_that_may_be_given_an_old_value_does_not_wait(demand: dict[str, Any], *, waits: bool) -> None:
    world = World()
    start(world)
    winner = a_reader(world).reading().until_kind(ReadRows)
    old = Read(ReadOutcome.STALE_SERVED, b"0")
    late = a_reader(world)
    late.context.recall = lambda _: old
    loser = late.reading(**demand)
    if waits:
        loser.until_kind(Wait)
        assert winner.finish()[0].outcome is ReadOutcome.FILLED
        assert loser.finish()[0].outcome is not ReadOutcome.STALE_SERVED
    else:
        assert loser.finish() == [old]
        assert not any(isinstance(step, Load | Wait) for step in loser.steps)
        assert winner.finish()[0].outcome is ReadOutcome.FILLED


def test_a_loser_waits_where_there_is_no_old_value() -> None:
    world = World()
    start(world)
    a_reader(world).reading().until_kind(ReadRows)
    late = a_reader(world)
    late.context.recall = lambda asked: None if asked.item == KEY else pytest.fail("another key was asked for")
    late.reading().until_kind(Wait)


def test_a_refused_loser_leaves_the_winners_stub() -> None:
    """The winner may fill by it, although the loser's replica lags."""
    world = World()
    one = start(world)
    made = world.commit(KEY)
    one.apply()
    winner = Reader(world, world.replica(made)).reading().until(is_fill)
    assert Reader(world, world.replica()).read() is ReadOutcome.STRIPE
    assert winner.finish()[0].outcome is ReadOutcome.FILLED


def test_of_two_who_fill_one_loses() -> None:
    world = World()
    start(world)
    winner = a_reader(world).reading().until(is_fill)
    loser = a_reader(world).reading().until(is_fill)
    assert loser.finish()[0].outcome is ReadOutcome.FILLED
    version = version_of(world, KEY)
    assert winner.finish()[0].outcome is ReadOutcome.LOST_RACE
    assert version_of(world, KEY) == version


def test_a_refused_winner_makes_room() -> None:
    """F72: its stub is dropped by CAS, and the next reader wins."""
    world = World()
    one = start(world)
    made = world.commit(KEY)
    one.apply()
    assert Reader(world, world.replica()).read() is ReadOutcome.STRIPE
    assert world.stores[NODE].peek(KEY) is None
    assert Reader(world, world.replica(made)).read() is ReadOutcome.FILLED


def test_a_refused_winner_drops_nothing_but_its_own_stub() -> None:
    world = World()
    one = start(world)
    made = world.commit(KEY)
    one.apply()
    run = Reader(world, world.replica()).reading().until_kind(Delete)
    assert isinstance(run.pending, Delete)
    assert run.pending.version == version_of(world, KEY)
    loser = Reader(world, world.replica(made)).reading().until(is_fill)
    loser.finish()
    assert run.finish()[0].outcome is ReadOutcome.STRIPE
    assert Reader(world, world.replica()).read() is ReadOutcome.HIT


def test_a_loser_whose_node_fails_while_it_waits_reads_the_database() -> None:
    world = World()
    start(world)
    a_reader(world).reading().until_kind(ReadRows)
    loser = a_reader(world).reading().until_kind(Wait)
    world.stores[NODE].down = True
    assert loser.finish()[0].outcome is ReadOutcome.NODE_DOWN


def test_a_loser_does_not_fill_what_was_invalidated_while_it_waited() -> None:
    world = World()
    one = start(world)
    a_reader(world).reading().until_kind(ReadRows)
    lagging = Reader(world, world.replica()).reading().until_kind(Wait)
    world.commit(KEY)
    one.apply()
    assert lagging.finish()[0].outcome is ReadOutcome.STRIPE


# -- the loader ----------------------------------------------------------------------------------------


class Broken(Exception):
    pass


def test_a_failing_loader_reaches_the_caller_and_leaves_no_stub() -> None:
    world = World()
    start(world)
    run = a_reader(world).reading(lookup(), lookup(2))
    run.load_error = Broken("the database is gone")
    with pytest.raises(Broken):
        run.finish()
    assert world.stores[NODE].peek(KEY) is None
    assert world.stores[NODE].peek(lookup(2).item) is None


def test_a_failing_loader_is_reported_even_where_the_node_fails_too() -> None:
    world = World()
    start(world)
    run = a_reader(world).reading().until_kind(ReadToken)
    run.load_error = Broken("the database is gone")
    world.stores[NODE].down = True
    with pytest.raises(Broken):
        run.finish()


def test_hits_need_no_loader() -> None:
    world = World()
    start(world)
    reader = a_reader(world)
    reader.read()
    run = reader.reading(lookup(), lookup(2)).until_kind(Load)
    assert isinstance(run.pending, Load)
    assert [one.values for one in run.pending.lookups] == [(2,)]


# -- TTL -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("jitter", "ttl_seconds"), [(0.0, 3600), (0.5, 3420), (0.999999, 3240)])
def test_the_ttl_is_jittered_downwards_by_a_tenth_at_most(jitter: float, ttl_seconds: int) -> None:
    """F47."""
    world = World()
    start(world)
    run = a_reader(world, jitter=jitter).reading().until(is_fill)
    assert isinstance(run.pending, Cas)
    assert run.pending.ttl_seconds == ttl_seconds


def test_the_shortest_ttl_is_a_second() -> None:
    """A TTL of 0 would never expire."""
    world = World()
    start(world)
    short = lookup(policy=replace(lookup().policy, value_ttl_seconds=1))
    run = a_reader(world, jitter=0.9).reading(short).until(is_fill)
    assert isinstance(run.pending, Cas)
    assert run.pending.ttl_seconds == 1


# -- on_stale ------------------------------------------------------------------------------------------


def test_bypass_reads_the_database_when_nobody_vouches() -> None:
    world = World()
    start(world)
    a_reader(world).read()
    version = version_of(world, KEY)
    world.sleep(30)
    assert a_reader(world).read() is ReadOutcome.NO_RECORD
    assert version_of(world, KEY) == version


def test_serve_serves_what_the_last_life_left() -> None:
    world = World()
    one = start(world)
    a_reader(world).read()
    world.commit(KEY)
    world.sleep(30)
    run = a_reader(world, on_stale="serve").reading()
    (read,) = run.finish()
    assert (read.outcome, read.payload) == (ReadOutcome.STALE_SERVED, b"[]")
    assert read.is_hit
    one.join()
    assert a_reader(world, on_stale="serve").read() is ReadOutcome.STALE_SERVED  # revived and still closed


def test_serve_does_not_serve_an_ended_life() -> None:
    world = World()
    start(world)
    a_reader(world).read()
    world.sleep(30)
    assert world.stores[NODE].evict(resume_key(NAMESPACE, LINEAGE))
    assert a_reader(world, on_stale="serve").read() is ReadOutcome.NO_RECORD
    Invalidator(world).join()
    assert a_reader(world, on_stale="serve").read() is ReadOutcome.CLOSED


def test_serve_serves_nobody_who_bounds_the_age() -> None:
    """I7: the age is not known."""
    world = World()
    start(world)
    a_reader(world).read()
    world.sleep(30)
    assert a_reader(world, on_stale="serve").read(max_staleness_seconds=3600) is ReadOutcome.NO_RECORD


def test_serve_stops_at_a_node_that_fails() -> None:
    world = World()
    start(world)
    a_reader(world).read()
    world.sleep(30)
    run = a_reader(world, on_stale="serve").reading()
    while len(run.steps) < 2:
        run.advance()
    run.lose_request()
    assert run.finish()[0].outcome is ReadOutcome.NO_RECORD


# -- two lineages --------------------------------------------------------------------------------------


def start_pair() -> tuple[World, Invalidator, Invalidator, Lookup]:
    world = World(lineages=(LINEAGE, OTHER))
    objects = {PAIR.name: PAIR.fingerprint}
    one, two = (start(world, lineage=lineage, objects=objects) for lineage in world.databases)
    return world, one, two, lookup(1, PAIR)


def read_pair(world: World, *replicas: Any) -> Reader:
    mine = {replica.database.lineage: replica for replica in replicas}
    return Reader(
        world,
        [
            mine.get(lineage) or type(world.replica())(database).catch_up()
            for lineage, database in world.databases.items()
        ],
    )


def test_a_composite_of_two_lineages_carries_both() -> None:
    world, _, _, pair = start_pair()
    assert read_pair(world).read(pair) is ReadOutcome.FILLED
    item = world.stores[NODE].peek(pair.item)
    assert item is not None
    assert [stamp.lineage for stamp in Filled.decode(item.value).stamps] == [LINEAGE, OTHER]
    assert read_pair(world).read(pair) is ReadOutcome.HIT


@pytest.mark.parametrize("lagging", [LINEAGE, OTHER])
def test_a_composite_needs_every_lineage(lagging: str) -> None:
    """F31, F33."""
    world, one, two, pair = start_pair()
    replica = type(world.replica())(world.databases[lagging])
    world.databases[lagging].commit(pair.item)
    (one if lagging == LINEAGE else two).apply()
    assert read_pair(world, replica).read(pair) is ReadOutcome.STRIPE
    assert read_pair(world).read(pair) is ReadOutcome.FILLED
    assert world.broken == []


@pytest.mark.parametrize("missing", [LINEAGE, OTHER])
def test_a_composite_needs_the_stripe_of_every_lineage(missing: str) -> None:
    world, _, _, pair = start_pair()
    world.evict_stripe(pair.item, lineage=missing)
    assert read_pair(world).read(pair) is ReadOutcome.STRIPE_ABSENT
    for lineage in (LINEAGE, OTHER):
        held = world.stores[NODE].peek(wanted_key(NAMESPACE, lineage))
        assert held is not None
        number = stripe_number(pair.item, STRIPES)
        assert decode_wanted(held.value) == ([number] if lineage == missing else [])


def test_a_composite_without_a_token_of_each_lineage_is_refused() -> None:
    world, one, _, pair = start_pair()
    silent = type(world.replica())(world.databases[OTHER])
    silent.gives_token = False
    assert read_pair(world, silent).read(pair) is ReadOutcome.NO_TOKEN
    world.databases[OTHER].commit(pair.item)
    one.apply()
    assert read_pair(world, silent).read(pair) is ReadOutcome.NO_TOKEN


def test_a_composite_is_no_hit_where_one_lineage_is_not_vouched_for() -> None:
    world, one, _, pair = start_pair()
    read_pair(world).read(pair)
    for _ in range(8):
        world.sleep(1)
        one.apply()
    assert read_pair(world).read(pair) is ReadOutcome.NO_RECORD


def test_a_composite_dies_with_either_life() -> None:
    world, _, _, pair = start_pair()
    read_pair(world).read(pair)
    replace_life(world, b"ANOTHER!")
    assert read_pair(world).read(pair) is ReadOutcome.FILLED


def requests_of(step: Step) -> list[bytes]:
    assert isinstance(step, Flows)
    return [request.key for flow in step.flows for request in flow.requests if isinstance(request, Get)]


def start_two() -> tuple[World, Reader]:
    """Two lineages; the customer lives in the first alone."""
    world = World(lineages=(LINEAGE, OTHER))
    start(world)
    start(world, lineage=OTHER)
    reader = read_pair(world)
    assert reader.read(lookup(2)) is ReadOutcome.FILLED
    return world, reader


def test_guards_are_fetched_of_those_lineages_alone_that_have_a_say() -> None:
    world, reader = start_two()
    view = reader.context.views[NODE]
    run = reader.reading()
    assert run.finish()[0].outcome is ReadOutcome.FILLED
    assert requests_of(run.steps[1]) == [STRIPE, record_key(NAMESPACE, LINEAGE)]
    assert reader.context.views[NODE] is view, "hits need the records of all lineages"
    run = read_pair(world).reading(lookup(3))
    run.finish()
    assert requests_of(run.steps[0])[:-1] == [record_key(NAMESPACE, LINEAGE), record_key(NAMESPACE, OTHER)]


def test_guards_of_several_objects_are_fetched_of_all_their_lineages() -> None:
    world, _, _, pair = start_pair()
    run = read_pair(world).reading(lookup(1), pair).until_kind(Load)
    records = [record_key(NAMESPACE, LINEAGE), record_key(NAMESPACE, OTHER)]
    stripes = [stripe_key(NAMESPACE, name, stripe_number(pair.item, STRIPES)) for name in (LINEAGE, OTHER)]
    assert requests_of(run.steps[1]) == [STRIPE, *stripes, *records]


@pytest.mark.parametrize(("lineage", "outcome"), [(LINEAGE, ReadOutcome.LIFE), (OTHER, ReadOutcome.FILLED)])
def test_a_life_that_ends_during_a_read_counts_where_it_has_a_say(lineage: str, outcome: ReadOutcome) -> None:
    """A node that was restarted forgot the records of all lineages: each alone shows it (F8)."""
    world, reader = start_two()
    run = reader.reading().until_kind(Get, key=STRIPE)
    key = record_key(NAMESPACE, lineage)
    record = replace(world.record(lineage=lineage), life=b"ANOTHER!")
    assert isinstance(world.stores[NODE].answer(Cas(key, record.encode(), version_of(world, key), 4)), Stored)
    assert run.finish()[0].outcome is outcome


@pytest.mark.parametrize("lineage", [LINEAGE, OTHER])
def test_a_composite_is_not_filled_where_one_of_its_lives_ends_during_the_read(lineage: str) -> None:
    world, _, _, pair = start_pair()
    run = read_pair(world).reading(pair).until_kind(Get, key=world.stripe_key(pair.item))
    key = record_key(NAMESPACE, lineage)
    record = replace(world.record(lineage=lineage), life=b"ANOTHER!")
    assert isinstance(world.stores[NODE].answer(Cas(key, record.encode(), version_of(world, key), 4)), Stored)
    assert run.finish()[0].outcome is ReadOutcome.LIFE


# -- views ---------------------------------------------------------------------------------------------


def test_a_view_is_trusted_for_its_time_and_no_longer() -> None:
    world = World()
    one = start(world)
    reader = a_reader(world)
    reader.read()
    one.live(0.9)
    assert len(step_requests(reader.reading())) == 1
    one.live(1.0)
    assert len(step_requests(reader.reading())) == 2


def step_requests(run: Run[list[Read]]) -> tuple[object, ...]:
    (step,) = run.steps
    assert isinstance(step, Flows)
    requests = step.flows[0].requests
    run.finish()
    return tuple(requests)


def test_a_reader_with_an_old_view_destroys_no_more_than_one_entry() -> None:
    """Its view is of a previous life, so that a live entry looks dead: it is claimed, and not filled."""
    world = World()
    start(world)
    reader = a_reader(world)
    reader.read(lookup(2))
    replace_life(world, b"ANOTHER!")
    assert a_reader(world).read() is ReadOutcome.FILLED
    assert reader.read() is ReadOutcome.LIFE
    assert reader.read() is ReadOutcome.FILLED
    assert world.broken == []


def test_a_reader_whose_object_nobody_covers_claims_nothing() -> None:
    """F70, F83: a dead entry of that key stays, since this reader cannot fill."""
    world = World()
    one = start(world)
    reader = a_reader(world)
    assert reader.read() is ReadOutcome.FILLED
    world.commit(raised=("customers",))
    one.apply()
    other = replace(lookup().policy, fingerprint=77)
    before = entry_of(world)
    run = a_reader(world).reading(replace(lookup(), policy=other))
    assert run.finish()[0].outcome is ReadOutcome.OBJECT
    assert entry_of(world) == before


def test_a_node_that_failed_is_not_judged_by_the_view_of_before() -> None:
    world = World()
    start(world)
    reader = a_reader(world)
    reader.read()
    world.stores[NODE].down = True
    assert reader.read() is ReadOutcome.NODE_DOWN
    assert reader.context.views == {}
    world.stores[NODE].down = False
    assert reader.read() is ReadOutcome.HIT


def test_a_broken_connection_is_no_miss() -> None:
    world = World()
    start(world)
    reader = a_reader(world)
    reader.read()
    world.restart()
    assert reader.read() is ReadOutcome.NODE_DOWN
    assert reader.read() is ReadOutcome.NO_RECORD
