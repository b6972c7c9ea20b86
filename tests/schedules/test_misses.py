"""A read that the cache does not answer: no value is called fresh that lacks an acknowledged invalidation (I10).

As in test_defences.py, each defence is taken out once, and then the invariant breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from appclient.database.required import KeyedRows, Required
from appclient.telemetry.observer import Observer
from freshness.algorithm import fill
from freshness.algorithm.envelope import NodeRecord, Stripe
from freshness.algorithm.lookup import Loaded, ReadServer
from freshness.algorithm.request import LATEST, Delete, Get, Load
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome, find_required
from freshness.algorithm.state import Pending
from freshness.errors import SourceUnsuitable
from freshness.position import empty_position, parse_position
from freshness.position.token import EventToken
from tests.schedules.test_at_least import ROWS, Asked, Server, commit, load_row, open_shard
from tests.schedules.test_defences import STRIPE_KEY, prove, start, without_floor
from tests.schedules.world import KEY, LINEAGE, NODE, NODE_REFRESH_SECONDS, Client, Reader, ReadToken, World, lookup


def read_lagging(world: World, *, catches_up: bool = False) -> tuple[ReadOutcome, bool]:
    """By a replica that has nothing of what was committed, or all."""
    replica = world.replica()
    run = Reader(world, replica.catch_up() if catches_up else replica).reading()
    (read,) = run.finish()
    return read.outcome, read.shows_required


def plant_required(change: Callable[[NodeRecord, ObjectPolicy], NodeRecord], *, keeps_stripes: bool = True) -> object:
    """`find_required` of changed records."""

    def changed(
        policy: ObjectPolicy,
        ring: int,
        records: Mapping[str, NodeRecord | None],
        stripes: Mapping[str, Stripe | None],
    ) -> Mapping[str, EventToken]:
        seen = {name: None if one is None else change(one, policy) for name, one in records.items()}
        return find_required(policy, ring, seen, stripes if keeps_stripes else {})

    return changed


def nothing_of(record: NodeRecord) -> NodeRecord:
    return replace(record, progress=empty_position(record.progress.flavor))


def test_a_row_that_lacks_what_its_stripe_holds_is_not_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    def schedule(world: World) -> tuple[ReadOutcome, bool]:
        one = start(world)
        world.commit(KEY)
        one.apply()
        assert read_lagging(world, catches_up=True) == (ReadOutcome.FILLED, True)
        world.commit(KEY)
        one.apply()
        return read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        blind = plant_required(lambda record, _: nothing_of(record), keeps_stripes=False)
        patch.setattr(fill, "find_required", blind)

    prove(schedule, (ReadOutcome.STRIPE, False), plant, "I10", monkeypatch)


def test_a_row_at_no_known_position_is_not_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    def schedule(world: World) -> tuple[ReadOutcome, bool]:
        one = start(world)
        world.commit(KEY)
        one.apply()
        return read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Pending, "is_shown", lambda self, _: self.required is not None)

    prove(schedule, (ReadOutcome.STRIPE, False), plant, "I10", monkeypatch)


def test_a_row_that_lacks_what_was_before_the_life_is_not_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new life covers its objects from its floor on, so the plant forgets both."""

    def schedule(world: World) -> tuple[ReadOutcome, bool]:
        world.commit(KEY)
        start(world)
        return read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(fill, "find_required", plant_required(without_floor))

    prove(schedule, (ReadOutcome.FLOOR, False), plant, "I10", monkeypatch)


def test_a_row_from_before_a_raise_of_its_table_is_not_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    def schedule(world: World) -> tuple[ReadOutcome, bool]:
        one = start(world)
        world.commit(raised=["customers"])
        one.apply()
        return read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(fill, "find_required", plant_required(lambda record, _: replace(record, table_floors={})))

    prove(schedule, (ReadOutcome.TABLE_FLOOR, False), plant, "I10", monkeypatch)


def test_where_the_stripe_is_absent_the_progress_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    def schedule(world: World) -> tuple[ReadOutcome, bool]:
        one = start(world)
        world.commit(KEY)
        one.apply()
        world.stores[NODE].answer(Delete(world.stripe_key()))
        assert read_lagging(world, catches_up=True) == (ReadOutcome.STRIPE_ABSENT, True)
        return read_lagging(world)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(fill, "find_required", plant_required(lambda record, _: nothing_of(record)))

    prove(schedule, (ReadOutcome.STRIPE_ABSENT, False), plant, "I10", monkeypatch)


def test_the_database_is_asked_for_what_the_stripe_holds() -> None:
    world = World()
    one = start(world)
    made = world.commit(KEY)
    one.apply()
    step = Reader(world, world.replica()).reading().until_kind(ReadToken).steps[-1]
    assert isinstance(step, Load)
    assert step.lookups[0].required[LINEAGE].position.contains(made.position)


def test_the_stripe_of_another_spelling_says_nothing() -> None:
    """The row that the database finds has an item of its own, and so another stripe."""
    position = parse_position("mysql", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1")
    tokens = {LINEAGE: EventToken(LINEAGE, "-", 1, 0, position)}

    def is_shown(value: Any, refusal: ReadOutcome | None = None, *, is_exact: bool = True) -> bool:
        entry = Pending(lookup(is_exact=is_exact))
        entry.required = tokens
        return entry.is_shown(Loaded(value, tokens, refusal))

    assert is_shown([1])
    assert is_shown(None)
    assert is_shown([1], is_exact=False)
    assert not is_shown(None, is_exact=False)
    assert not is_shown([1], ReadOutcome.KEY)


def test_a_closed_node_says_nothing() -> None:
    world = World()
    one = start(world)
    world.commit(KEY)
    one.apply()
    world.sleep(60)
    assert read_lagging(world) == (ReadOutcome.NO_RECORD, False)


@pytest.mark.parametrize("outcome", [ReadOutcome.LIFE, ReadOutcome.NODE_DOWN])
def test_a_node_that_is_lost_during_a_read_says_nothing_without_a_stub_either(outcome: ReadOutcome) -> None:
    """The reader knew the node as closed and left no stub. The record that came with the answer was open, and then
    there is one of another life, or none."""
    world = World()
    reader = Reader(world, world.replica())
    assert reader.read() is ReadOutcome.NO_RECORD
    one = start(world)
    world.sleep(NODE_REFRESH_SECONDS)
    run = reader.reading().until_kind(Get, key=STRIPE_KEY)
    if outcome is ReadOutcome.LIFE:
        world.restart()
        run.client = one.client = Client(world)
        one.join()
        one.apply()
    else:
        run.lose_request()
    (read,) = run.finish()
    assert (read.outcome, read.shows_required) == (outcome, False)


# -- servers -------------------------------------------------------------------------------------------


def read_row(monkeypatch: pytest.MonkeyPatch, primary: Server, *replicas: Server, permits: bool = True) -> Any:
    """(version, position) of the row that must show transaction 5."""
    row, token, _ = ask_row(monkeypatch, primary, *replicas, permits=permits)
    return row["version"], str(token.position)


def ask_row(
    monkeypatch: pytest.MonkeyPatch,
    primary: Server,
    *replicas: Server,
    permits: bool = True,
    required: EventToken | None = None,
) -> tuple[Any, EventToken, str]:
    """The same, or of the row that must show ``required``, with the server that is said to have answered."""
    database = open_shard(monkeypatch, primary, *replicas)
    database._access = replace(database._access, permit_primary=lambda: permits)
    required = required or commit(5, primary.flavor)
    servers: dict[str, ReadServer] = {}
    [row], token = database.rows_with_token(*ROWS, None, "", required, servers)
    assert token is not None
    return row, token, str(servers[LINEAGE])


def test_a_replica_that_shows_what_the_row_must_contain_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    primary, late, fresh = Server(9), Server(4), Server(6)
    assert read_row(monkeypatch, primary, late, fresh)[0] == 6
    assert primary.asked == []


@pytest.mark.parametrize("permits", [True, False], ids=["permitted", "bounded"])
@pytest.mark.parametrize(("arrives", "result"), [(5, ["waited"]), (4, [])], ids=["in time", "late"])
def test_the_last_replica_is_waited_for_by_a_setting(
    arrives: int, result: list[str], permits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `miss_wait_ms`, which the next read does not wait if it was in vain."""
    primary, late, last = Server(9), Server(4), Server(4, arrives=arrives)
    database = open_shard(monkeypatch, primary, late, last, miss_wait_ms=10)
    database._choice._clock = lambda: 0.0
    observer = Observer()
    results: list[str] = []
    monkeypatch.setattr(observer, "need_primary", results.append)
    database._access = replace(database._access, permit_primary=lambda: permits, observer=observer)
    for _ in range(2):
        database.rows_with_token(*ROWS, None, "", commit(5))
    assert results == result
    assert (late.asked.count("wait"), last.asked.count("wait")) == (0, 1)
    assert bool(primary.asked) == (permits and arrives < 5)


def test_else_the_primary_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_row(monkeypatch, Server(9), Server(4), Server(3))[0] == 9


def test_above_the_bound_the_last_replica_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    primary = Server(9)
    assert read_row(monkeypatch, primary, Server(4), Server(3), permits=False)[0] == 3
    assert primary.asked == []


def test_without_the_primary_a_replica_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_row(monkeypatch, Server(9, is_down=True), Server(4))[0] == 4


@pytest.mark.parametrize(
    ("replica", "is_down", "permits", "server"),
    [
        (6, False, True, "replica replica1:3306"),
        (4, False, True, "primary primary:3306"),
        (4, False, False, "replica replica1:3306"),
        (4, True, True, "replica replica0:3306"),
    ],
    ids=["shows it", "lacks it", "bounded", "no primary"],
)
def test_a_read_says_which_server_answered(
    replica: int, is_down: bool, permits: bool, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary = Server(9, is_down=is_down)
    assert ask_row(monkeypatch, primary, Server(4), Server(replica), permits=permits)[2] == server


@pytest.mark.parametrize(
    ("is_down", "permits", "server"),
    [
        (False, True, "primary primary:3306"),
        (False, False, "replica replica0:3306"),
        (True, True, "replica replica0:3306"),
    ],
    ids=["permitted", "bounded", "no primary"],
)
def test_if_nothing_is_known_the_primary_is_read_at_once(
    is_down: bool, permits: bool, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, replica = Server(9, is_down=is_down), Server(99)
    asked = ask_row(monkeypatch, primary, replica, Server(99), permits=permits, required=LATEST)
    assert asked[2] == server
    assert bool(replica.asked) == (server != "primary primary:3306")


def test_without_replicas_nothing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def permit() -> bool:
        raise AssertionError("the read is of the primary anyway")

    database = open_shard(monkeypatch, Server(9))
    database._access = replace(database._access, permit_primary=permit)
    assert database.rows_with_token(*ROWS, None, "", LATEST)[0][0]["version"] == 9


def test_while_the_primary_is_down_the_last_replica_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the primary was to be read first."""
    late, last = Server(4), Server(4, arrives=5)
    database = open_shard(monkeypatch, Server(9, is_down=True), late, last)
    [row], _ = database.rows_with_token(*ROWS, commit(5), "", LATEST)
    assert (row["version"], "wait" in late.asked) == (5, False)


def test_a_snapshot_says_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    database = open_shard(monkeypatch, Server(9), Server(4))
    for read in (
        lambda servers: database.snapshot(lambda _: None, None, Required(commit(5)), servers),
        lambda servers: database.begin_snapshot(None, Required(commit(5)), servers),
    ):
        servers: dict[str, ReadServer] = {}
        read(servers)
        assert servers == {LINEAGE: ReadServer("primary:3306", is_primary=True)}


def test_a_primary_that_failed_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    primary = Server(9, is_down=True)
    database = open_shard(monkeypatch, primary, Server(4))
    for _ in range(2):
        [row], _ = database.rows_with_token(*ROWS, None, "", commit(5))
        assert row["version"] == 4
    primary.is_down = False
    [row], _ = database.rows_with_token(*ROWS, None, "", commit(5))
    assert row["version"] == 4, "it is tried again after a while"


def test_a_row_that_the_driver_cannot_decode_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    database = open_shard(monkeypatch, Server(4))

    def fail(*_: Any, **__: Any) -> Any:
        return b"\xff".decode()

    monkeypatch.setattr(Asked, "find_rows", fail)
    with pytest.raises(SourceUnsuitable, match=r"customers.* has bytes that the driver takes for text"):
        database.rows_with_token(*ROWS)


def read_snapshot(monkeypatch: pytest.MonkeyPatch, primary: Server) -> Any:
    """As `read_row`, by a loader of a composite of two tables."""
    database = open_shard(monkeypatch, primary)
    rows = [KeyedRows(f"`{table}`", "`id` = %s", (1,)) for table in ("customers", "orders")]
    loaded, token = database.snapshot(load_row, None, Required(commit(5, primary.flavor), rows))
    assert token is not None
    return loaded[0]["version"], str(token.position)


WAYS: Final = (read_row, read_snapshot)


@pytest.mark.parametrize("read", WAYS)
def test_a_lock_shows_all_that_is_in_the_log_of_mariadb(monkeypatch: pytest.MonkeyPatch, read: Any) -> None:
    """What it shows is known at once; by its heartbeats alone it would be known seconds later."""
    assert read(monkeypatch, Server(4, logged=7, flavor="mariadb")) == (4, "0-1-7")


@pytest.mark.parametrize("change", [{"lock_error": 1205}, {"engine": "MyISAM"}], ids=str)
@pytest.mark.parametrize("read", WAYS)
def test_without_the_lock_the_log_says_nothing(monkeypatch: pytest.MonkeyPatch, read: Any, change: Any) -> None:
    assert read(monkeypatch, Server(4, logged=7, flavor="mariadb", **change)) == (4, "0-1-4")


@pytest.mark.parametrize("code", [1205, 1020, 1213])
def test_without_the_lock_the_primary_is_read_and_no_replica(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    primary = Server(4, logged=7, flavor="mariadb", lock_error=code)
    assert read_row(monkeypatch, primary, Server(3, flavor="mariadb")) == (4, "0-1-4")


def test_each_table_of_a_composite_is_locked_before_its_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    primary = Server(4, logged=7, flavor="mariadb")
    read_snapshot(monkeypatch, primary)
    asked = primary.asked
    assert asked[asked.index("token") :][:5] == ["token", "server", "rows", "rows", "start"]


def test_locks_on_another_server_than_the_position_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy locks the rows on another server, and comes back for those that are read."""
    one, other = (Server(4, name, logged=7, flavor="mariadb") for name in ("s1", "s2"))
    monkeypatch.setattr("tests.schedules.test_at_least.Asked", lambda _: Asked(one, other, one))
    shard = open_shard(monkeypatch, one)
    _, token = shard.snapshot(load_row, None, Required(commit(5, "mariadb"), [KeyedRows(*ROWS)]))
    assert token is not None
    assert str(token.position) == "0-1-4"
