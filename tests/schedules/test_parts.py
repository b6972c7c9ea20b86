"""Values in parts: the dangers that a value of several items brings, and the proof that each defence is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from freshness.algorithm import parts
from freshness.algorithm.envelope import PART_HEAD, Filled
from freshness.algorithm.parts import Manifest
from freshness.algorithm.request import Add, Cas, Delete, Get, Item, Refused, Wait
from freshness.algorithm.rule import ReadOutcome
from tests.schedules.test_defences import go_on, start
from tests.schedules.world import KEY, NAMESPACE, NODE, Action, Reader, Replica, World, is_fill, is_part, lookup

SIZE = 40
PART_BYTES = 4
COUNT = 10


def a_reader(world: World, replica: Replica | None = None, **options: Any) -> Reader:
    """Its values are all of one size, in `COUNT` parts."""
    reader = Reader(world, replica or world.replica().catch_up(), part_bytes=PART_BYTES, **options)
    reader.context.encode = lambda value: json.dumps(value).ljust(SIZE).encode()
    return reader


def is_part_write(action: Action) -> bool:
    return isinstance(action, Cas) and is_part(action.key)


def is_part_get(action: Action) -> bool:
    return isinstance(action, Get) and is_part(action.key) and not action.vivify_ttl_seconds


def manifest_of(world: World, key: bytes = KEY) -> Manifest:
    item = world.stores[NODE].peek(key)
    assert item is not None
    entry = Filled.decode(item.value)
    assert entry.is_parted
    assert entry.value is not None
    return Manifest.decode(entry.value)


def replace_parts(world: World, payload: bytes) -> None:
    """Another program, or a broken memory, puts these bytes in the place of the parts of the entry that is there."""
    manifest = manifest_of(world)
    for key, part in zip(manifest.keys(NAMESPACE), manifest.split(payload), strict=True):
        world.stores[NODE].answer(Delete(key))
        world.stores[NODE].answer(Add(key, part, 60))


def without_digest(patch: pytest.MonkeyPatch) -> None:
    def join(manifest: Manifest, items: Sequence[bytes | None]) -> bytes | None:
        return None if None in items else b"".join(item[len(PART_HEAD) :] for item in items if item is not None)

    patch.setattr(Manifest, "join", join)


def with_keys_of_the_place(patch: pytest.MonkeyPatch) -> None:
    """The parts of every value of a key are under the same keys."""
    patch.setattr(Manifest, "keys", lambda manifest, namespace: [b"shop:!!%d" % at for at in range(manifest.count)])


# -- two values are never mixed ------------------------------------------------------------------------


def overtaken(world: World) -> ReadOutcome:
    """A reader pauses before it writes its parts. During the pause the row changes, and another reader refills the
    entry. Then the first one goes on: its entry is refused, but its parts are written last."""
    one = start(world)
    world.commit(KEY)
    one.apply()
    paused = a_reader(world).reading().until(is_part_write_begin)
    world.commit(KEY)
    one.apply()
    assert a_reader(world).read() is ReadOutcome.FILLED
    assert paused.finish()[0].outcome is ReadOutcome.LOST_RACE
    return a_reader(world).read()


def is_part_write_begin(action: Action) -> bool:
    return isinstance(action, Get) and is_part(action.key) and action.vivify_ttl_seconds > 0


@pytest.mark.parametrize(
    ("plants", "outcome", "is_broken"),
    [
        ([], ReadOutcome.HIT, False),
        ([with_keys_of_the_place], ReadOutcome.FILLED, False),
        ([without_digest], ReadOutcome.HIT, False),
        ([with_keys_of_the_place, without_digest], ReadOutcome.HIT, True),
    ],
)
def test_the_parts_of_two_values_are_never_mixed(
    plants: list[Callable[[pytest.MonkeyPatch], None]],
    outcome: ReadOutcome,
    is_broken: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of the two defences holds alone. Without both an entry is served with the parts of another value."""
    for plant in plants:
        plant(monkeypatch)
    world = World()
    assert overtaken(world) is outcome
    assert world.breaks("I1") is is_broken
    assert bool(world.broken) is is_broken


def test_a_part_that_was_replaced_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(world: World) -> ReadOutcome:
        one = start(world)
        world.commit(KEY)
        world.commit(KEY)
        one.apply()
        assert a_reader(world).read() is ReadOutcome.FILLED
        replace_parts(world, b"[11]".ljust(SIZE))
        return a_reader(world).read()

    sound = World()
    assert play(sound) is ReadOutcome.FILLED
    assert sound.broken == []
    assert a_reader(sound).read() is ReadOutcome.HIT, "the parts were written again"
    without_digest(monkeypatch)
    flawed = World()
    play(flawed)
    assert flawed.breaks("I1")


def test_an_entry_with_parts_is_invalidated_without_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts stay; nobody asks for them without the entry."""
    world = World()
    one = start(world)
    assert a_reader(world).read() is ReadOutcome.FILLED
    keys = manifest_of(world).keys(NAMESPACE)
    world.commit(KEY)
    one.apply()
    assert world.stores[NODE].peek(KEY) is None
    assert all(world.stores[NODE].peek(key) is not None for key in keys)
    assert a_reader(world, world.replica()).read() is ReadOutcome.STRIPE
    assert a_reader(world).read() is ReadOutcome.FILLED
    assert a_reader(world).read() is ReadOutcome.HIT
    assert world.broken == []


def test_a_reader_between_entry_and_parts_gets_the_value_of_its_entry() -> None:
    """The read began before the invalidation; what it gets is whole, or nothing."""
    world = World()
    one = start(world)
    world.commit(KEY)
    one.apply()
    assert a_reader(world).read() is ReadOutcome.FILLED
    reading = a_reader(world).reading().until(is_part_get)
    world.commit(KEY)
    one.apply()
    assert a_reader(world).read() is ReadOutcome.FILLED
    (read,) = reading.finish()
    assert (read.outcome, read.payload) == (ReadOutcome.HIT, b"[11]".ljust(SIZE))
    assert world.broken == []


def test_an_entry_of_a_previous_life_is_no_hit_with_all_its_parts() -> None:
    world = World()
    one = start(world)
    assert a_reader(world).read() is ReadOutcome.FILLED
    store = world.stores[NODE]
    kept = [(KEY, store.peek(KEY)), *((key, store.peek(key)) for key in manifest_of(world).keys(NAMESPACE))]
    world.restart()
    go_on(one.applying())
    start(world)
    for key, item in kept:
        assert item is not None
        store.answer(Add(key, item.value, 60))
    assert a_reader(world).read() is ReadOutcome.FILLED
    assert world.broken == []


# -- parts go missing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [0, 4, COUNT - 1])
def test_a_missing_part_is_no_hit_and_the_reader_fills_again(lost: int) -> None:
    world = World()
    start(world)
    assert a_reader(world).read() is ReadOutcome.FILLED
    world.stores[NODE].evict(manifest_of(world).keys(NAMESPACE)[lost])
    assert a_reader(world).read() is ReadOutcome.FILLED
    assert a_reader(world).read() is ReadOutcome.HIT
    assert world.broken == []


def test_where_another_reader_takes_the_place_nothing_is_stored() -> None:
    world = World()
    start(world)
    assert a_reader(world).read() is ReadOutcome.FILLED
    world.stores[NODE].evict(manifest_of(world).keys(NAMESPACE)[3])
    late = a_reader(world).reading().until(is_part_get)
    assert a_reader(world).read() is ReadOutcome.FILLED
    first = late.finish()[0]
    assert first.outcome is ReadOutcome.HIT, "the parts are there again, of the very same value"
    world.stores[NODE].evict(manifest_of(world).keys(NAMESPACE)[3])
    late = a_reader(world).reading().until(lambda action: isinstance(action, Cas))
    assert a_reader(world).read() is ReadOutcome.FILLED
    assert late.finish()[0].outcome is ReadOutcome.PARTS
    assert a_reader(world).read() is ReadOutcome.HIT


def test_a_node_that_fails_between_entry_and_parts() -> None:
    """A failure does not count as a miss: nothing is claimed."""
    world = World()
    start(world)
    assert a_reader(world).read() is ReadOutcome.FILLED
    reading = a_reader(world).reading().until(is_part_get)
    reading.lose_request()
    assert reading.finish()[0].outcome is ReadOutcome.NODE_DOWN
    assert a_reader(world).read() is ReadOutcome.HIT


def test_an_entry_without_parts_is_never_stored_where_the_node_refuses_them() -> None:
    world = World()
    start(world)
    world.answer_instead = lambda _, request: (
        Refused("too large") if isinstance(request, Cas) and is_part(request.key) else None
    )
    assert a_reader(world).read() is ReadOutcome.TOO_LARGE
    assert world.stores[NODE].peek(KEY) is None, "its own stub is gone, too"
    assert a_reader(world).read() is ReadOutcome.TOO_LARGE


def test_parts_come_before_their_head() -> None:
    """A reader that finds the entry also finds the parts; one that comes between the two writes waits, and hits."""
    world = World()
    start(world)
    filling = a_reader(world).reading().until(is_fill)
    store = world.stores[NODE]
    assert store.peek(KEY) == Item(b"", version_of_stub(world), store.peek(KEY).ttl_seconds, lease=True)  # type: ignore[union-attr]
    waiting = a_reader(world).reading().until_kind(Wait)
    assert filling.finish()[0].outcome is ReadOutcome.FILLED
    assert waiting.finish()[0].outcome is ReadOutcome.HIT


def version_of_stub(world: World) -> int:
    item = world.stores[NODE].peek(KEY)
    assert item is not None
    return item.version


def test_a_writer_that_is_lost_between_parts_and_entry() -> None:
    world = World()
    start(world)
    filling = a_reader(world).reading().until(is_fill)
    filling.lose_request()
    assert filling.finish()[0].outcome is ReadOutcome.NODE_DOWN
    world.stores[NODE].evict(KEY)
    assert a_reader(world).read() is ReadOutcome.FILLED
    assert a_reader(world).read() is ReadOutcome.HIT


def test_an_invalidation_between_parts_and_entry() -> None:
    world = World()
    one = start(world)
    filling = a_reader(world).reading().until(is_part_write)
    world.commit(KEY)
    one.apply()
    assert filling.finish()[0].outcome is ReadOutcome.LOST_RACE
    assert world.stores[NODE].peek(KEY) is None
    assert world.broken == []


def test_two_writers_of_the_same_value() -> None:
    """Both put the same bytes under the same keys. The one that finds another version there stores no entry."""
    world = World()
    start(world)
    other = lookup(2)
    first = a_reader(world).reading().until(is_part_write)
    assert a_reader(world).read(other) is ReadOutcome.FILLED, "another key, with an equal value"
    assert first.finish()[0].outcome is ReadOutcome.LOST_RACE
    assert a_reader(world).read(other) is ReadOutcome.HIT
    assert a_reader(world).read() is ReadOutcome.FILLED
    assert a_reader(world).read() is ReadOutcome.HIT


def test_writers_that_split_otherwise_share_no_parts() -> None:
    """Two processes have other settings, and equal values under two keys. Each reads what the other one stored."""
    world = World()
    start(world)
    other = lookup(2)
    assert a_reader(world).read() is ReadOutcome.FILLED
    second = a_reader(world)
    second.context.part_bytes = PART_BYTES + 1
    assert second.read(other) is ReadOutcome.FILLED
    for reader in (a_reader(world), second):
        assert (reader.read(), reader.read(other)) == (ReadOutcome.HIT, ReadOutcome.HIT)


# -- several keys, stale entries, bounds ---------------------------------------------------------------


def test_the_parts_of_many_keys_are_one_flow() -> None:
    world = World()
    start(world)
    lookups = [lookup(number) for number in (1, 2, 3)]
    world.commit(lookups[0].item)
    reader = a_reader(world, world.replica())
    for each in lookups:
        assert reader.read(each) is ReadOutcome.FILLED
    run = reader.reading(*lookups)
    assert [read.outcome for read in run.finish()] == [ReadOutcome.HIT] * 3
    assert len(run.steps) == 2, "the entries, then all parts"


def test_a_closed_node_serves_a_value_in_parts_where_it_may() -> None:
    world = World()
    one = start(world)
    assert a_reader(world).read() is ReadOutcome.FILLED
    world.sleep(one.lease_seconds + 2)
    assert a_reader(world, on_stale="serve").read() is ReadOutcome.STALE_SERVED
    world.stores[NODE].evict(manifest_of(world).keys(NAMESPACE)[0])
    assert a_reader(world, on_stale="serve").read() is ReadOutcome.PARTS
    assert manifest_of(world), "nothing is claimed on a closed node"


def test_a_value_above_the_maximum_is_not_stored() -> None:
    world = World()
    start(world)
    assert a_reader(world, value_bytes_max=SIZE - 1).read() is ReadOutcome.TOO_LARGE
    assert list(filter(is_part, world.stores[NODE].keys())) == []
    assert a_reader(world, value_bytes_max=SIZE).read() is ReadOutcome.FILLED


def test_parts_live_as_long_as_their_entry() -> None:
    world = World()
    start(world)
    assert a_reader(world).read() is ReadOutcome.FILLED
    items = [world.stores[NODE].peek(key) for key in (KEY, *manifest_of(world).keys(NAMESPACE))]
    assert len({item.ttl_seconds for item in items if item is not None}) == 1


def test_a_value_of_too_many_parts_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PARTS_MAX", COUNT - 1)
    world = World()
    start(world)
    assert a_reader(world).read() is ReadOutcome.TOO_LARGE
    monkeypatch.setattr(parts, "PARTS_MAX", COUNT)
    assert a_reader(world).read() is ReadOutcome.FILLED


def test_a_manifest_that_no_writer_makes_asks_for_nothing() -> None:
    """A hostile manifest names a billion parts. The reader asks for none of them, and puts a stub in its place."""
    world = World()
    start(world)
    assert a_reader(world).read() is ReadOutcome.FILLED
    item = world.stores[NODE].peek(KEY)
    assert item is not None
    entry = Filled.decode(item.value)
    for size, part_bytes in ((1 << 30, 1), (0, 4), (4, 0), (4, 4), (1 << 31, 1 << 30)):
        hostile = Filled(entry.stamps, entry.identity, Manifest(size, part_bytes, bytes(32)).encode(), True)
        world.stores[NODE].answer(Delete(KEY))
        world.stores[NODE].answer(Add(KEY, hostile.encode(), 60))
        reading = a_reader(world).reading()
        outcome = reading.finish()[0].outcome
        assert outcome is ReadOutcome.FILLED
        assert a_reader(world).read() is ReadOutcome.HIT


def test_a_small_value_has_no_parts() -> None:
    world = World()
    start(world)
    assert Reader(world, world.replica(), part_bytes=2).read() is ReadOutcome.FILLED
    item = world.stores[NODE].peek(KEY)
    assert item is not None
    assert not Filled.decode(item.value).is_parted
