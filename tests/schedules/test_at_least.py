"""A caller that asks for its own commits: which hits show them, and which servers (I9).

As in test_defences.py, each defence is taken out once, and then the invariant breaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pymysql
import pytest

from appclient.connection.query import LoaderConnection
from appclient.database.atleast import Behind
from appclient.database.choice import REST_SECONDS
from appclient.database.database import Database
from appclient.database.shard import ShardDatabase
from freshness.algorithm import read
from freshness.algorithm.envelope import Filled, record_key
from freshness.algorithm.request import Cas, Get, Load, Stored
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.algorithm.shortway import find_hit, find_hits
from freshness.algorithm.state import Read
from freshness.algorithm.view import NodeView
from freshness.config.keyspace import Keyspace, Shard
from freshness.config.server import ServerAddress
from freshness.errors import SourceUnavailable
from freshness.position import parse_position
from freshness.position.token import EventToken
from freshness.stream.heartbeat import EPOCH_ROW
from tests.schedules.session import Session, kind_of
from tests.schedules.test_defences import prove, start
from tests.schedules.test_upstream_defences import CONNECT, read_in_order
from tests.schedules.world import (
    KEY,
    LINEAGE,
    NAMESPACE,
    NODE,
    Reader,
    ReadToken,
    Transaction,
    World,
    look_up_with_the_record_behind,
    lookup,
    version_of,
)

OTHER: Final = "shop/b"
PAIR: Final = ObjectPolicy("pair", 9, ("customers",), (LINEAGE, OTHER), 3600)
NEIGHBOUR: Final = lookup(2)


def own(world: World, commit: Transaction, lineage: str = LINEAGE) -> dict[str, EventToken]:
    """What a session asks for that made this commit."""
    return {lineage: EventToken(lineage, "-", world.databases[lineage].epoch, 0, commit.position)}


def a_reader(world: World) -> Reader:
    return Reader(world, world.replica().catch_up())


# -- hits ----------------------------------------------------------------------------------------------


def test_an_entry_from_before_the_own_commit_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The invalidator has not streamed the commit yet."""

    def schedule(world: World) -> ReadOutcome:
        start(world)
        reader = a_reader(world)
        assert reader.read() is ReadOutcome.FILLED
        asked = own(world, world.commit(KEY))
        reader.replicas = world.replica().catch_up()
        return reader.read(at_least=asked)

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(NodeView, "shows", lambda *_: True)

    prove(schedule, ReadOutcome.BEHIND, plant, "I9", monkeypatch)


def test_a_record_behind_the_entry_does_not_vouch_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is invalidated between the two: a later record names it, and the entry lacks it."""

    def schedule(world: World) -> ReadOutcome:
        one = start(world)
        assert a_reader(world).read() is ReadOutcome.FILLED
        asked = own(world, world.commit(KEY))
        run = a_reader(world).reading(at_least=asked)
        run.advance()  # the first request of the flow
        one.apply()
        return run.finish()[0].outcome

    def plant(_: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(read, "look_up", look_up_with_the_record_behind)

    prove(schedule, ReadOutcome.FILLED, plant, "I9", monkeypatch)


def test_an_older_entry_is_a_hit_once_the_progress_has_the_commit() -> None:
    """Its row was not changed by it. The reader's copy of the record is from before, and is fetched again."""
    world = World()
    one = start(world)
    reader = a_reader(world)
    assert reader.read(NEIGHBOUR) is ReadOutcome.FILLED
    asked = own(world, world.commit(KEY))
    assert reader.read(NEIGHBOUR, at_least=asked) is ReadOutcome.BEHIND
    assert reader.read(NEIGHBOUR) is ReadOutcome.HIT, "the entry stays"
    one.apply()
    run = reader.reading(NEIGHBOUR, at_least=asked)
    run.until_kind(Get, key=record_key(NAMESPACE, LINEAGE))
    assert run.finish()[0].outcome is ReadOutcome.HIT
    assert world.broken == []
    again = reader.reading(NEIGHBOUR, at_least=asked)
    assert again.pending == Get(NEIGHBOUR.item, 10), "the copy has it now"
    assert again.finish()[0].outcome is ReadOutcome.HIT


def test_the_short_way_serves_once_the_copy_of_the_record_has_the_commit() -> None:
    world = World()
    one = start(world)
    reader = a_reader(world)
    assert reader.read(NEIGHBOUR) is ReadOutcome.FILLED
    data = world.stores[NODE].peek(NEIGHBOUR.item)
    assert data is not None
    asked = own(world, world.commit(KEY))

    def take_short_way(at_least: Mapping[str, EventToken]) -> list[Read | None]:
        taking = find_hits(reader.context, [NEIGHBOUR], at_least)
        try:
            next(taking)
            taking.send([[data.value]])
        except StopIteration as end:
            return [find_hit(reader.context, NEIGHBOUR, lambda _: data.value, at_least), *end.value]
        raise AssertionError("the short way asks once")

    assert take_short_way(asked) == [None, None], "the entry is live, and older than the commit"
    plain = take_short_way({})
    assert all(plain)
    one.apply()
    assert reader.read(NEIGHBOUR, at_least=asked) is ReadOutcome.HIT, "it fetches the record"
    assert take_short_way(asked) == plain


def test_an_entry_that_was_read_behind_the_commit_needs_no_progress() -> None:
    world = World()
    start(world)
    asked = own(world, world.commit(KEY))
    assert a_reader(world).read(at_least=asked) is ReadOutcome.FILLED
    assert a_reader(world).read(at_least=asked) is ReadOutcome.HIT
    assert world.broken == []


def test_entry_and_progress_together_have_what_neither_has() -> None:
    world = World()
    one = start(world)
    first, second = world.commit(b"shop:customer:8"), world.commit(b"shop:customer:9")
    assert Reader(world, world.replica(first)).read() is ReadOutcome.FILLED
    one.apply(one.batch(second))
    asked = {LINEAGE: EventToken(LINEAGE, "-", 1, 0, first.position.union(second.position))}
    assert Reader(world, world.replica()).read(at_least=asked) is ReadOutcome.HIT


@pytest.mark.parametrize("change", [{"epoch": 2}, {"epoch": 0}, {"lineage": "shop/previous"}])
def test_a_commit_of_another_history_is_never_a_hit(change: dict[str, Any]) -> None:
    """Its position cannot be compared, whatever its numbers are."""
    world = World()
    one = start(world)
    reader = a_reader(world)
    assert reader.read() is ReadOutcome.FILLED
    commit = world.commit(b"shop:customer:9")
    one.apply()
    named = {"lineage": LINEAGE, "shard": "-", "epoch": 1, "timestamp_us": 0, "position": commit.position}
    asked = {LINEAGE: EventToken(**{**named, **change})}
    assert reader.read(at_least=own(world, commit)) is ReadOutcome.HIT
    assert reader.read(at_least=asked) is ReadOutcome.BEHIND


def test_each_lineage_of_a_value_stands_by_itself() -> None:
    world = World(lineages=(LINEAGE, OTHER))
    objects = {PAIR.name: PAIR.fingerprint}
    one, two = (start(world, lineage=lineage, objects=objects) for lineage in world.databases)
    key = lookup(1, PAIR)
    reader = Reader(world, [type(world.replica())(each).catch_up() for each in world.databases.values()])
    assert reader.read(key) is ReadOutcome.FILLED
    here = own(world, world.databases[LINEAGE].commit(b"shop:pair:9"))
    there = own(world, world.databases[OTHER].commit(b"shop:pair:9"), OTHER)
    one.apply()
    assert reader.read(key, at_least=here) is ReadOutcome.HIT
    assert reader.read(key, at_least={**here, **there}) is ReadOutcome.BEHIND
    two.apply()
    assert reader.read(key, at_least={**here, **there}) is ReadOutcome.HIT
    here = own(world, world.databases[LINEAGE].commit(b"shop:pair:9"))
    there = own(world, world.databases[OTHER].commit(b"shop:pair:9"), OTHER)
    second, late = lookup(2, PAIR), type(world.replica())(world.databases[OTHER])
    ahead = Reader(world, [world.replica().catch_up(), late.apply(world.databases[OTHER].transactions[0])])
    assert ahead.read(second) is ReadOutcome.FILLED, "at the one commit and before the other"
    assert ahead.read(second, at_least=here) is ReadOutcome.HIT
    assert ahead.read(second, at_least={**here, **there}) is ReadOutcome.BEHIND
    assert reader.read(lookup(), at_least=there) is not ReadOutcome.BEHIND, "no lineage of this object"


def test_a_caller_that_asks_for_a_commit_is_served_nothing_of_unknown_age() -> None:
    world = World()
    start(world)
    reader = Reader(world, world.replica().catch_up(), on_stale="serve")
    assert reader.read() is ReadOutcome.FILLED
    commit = world.commit(b"shop:customer:9")
    world.sleep(60)
    assert reader.read(at_least=own(world, commit)) is ReadOutcome.NO_RECORD
    assert reader.read() is ReadOutcome.STALE_SERVED


def test_waiting_for_another_reader_keeps_to_the_commit() -> None:
    """The winner of the lease fills from a replica that lacks the commit."""
    world = World()
    start(world)
    winner = Reader(world, world.replica()).reading().until_kind(Cas)
    asked = own(world, world.commit(KEY))
    waiting = a_reader(world).reading(at_least=asked)
    waiting.advance()
    waiting.advance()
    winner.finish()
    assert waiting.finish()[0].outcome is ReadOutcome.BEHIND
    assert world.broken == []


def test_the_database_is_asked_for_the_commit_too() -> None:
    world = World()
    start(world)
    asked = own(world, world.commit(KEY))
    run = a_reader(world).reading(at_least=asked).until_kind(ReadToken)
    step = run.steps[-1]
    assert isinstance(step, Load)
    assert step.at_least == asked


def test_an_entry_that_is_behind_is_left_as_it_is() -> None:
    world = World()
    start(world)
    assert a_reader(world).read() is ReadOutcome.FILLED
    before = version_of(world, KEY)
    assert a_reader(world).read(at_least=own(world, world.commit(KEY))) is ReadOutcome.BEHIND
    assert version_of(world, KEY) == before
    assert isinstance(world.stores[NODE].answer(Cas(KEY, b"x", before, 4)), Stored)


def test_a_commit_that_was_made_up_is_never_stored() -> None:
    """F122: what is stored says what its server showed, whatever was asked for."""
    world = World()
    start(world)
    made_up = {LINEAGE: EventToken(LINEAGE, "-", 1, 0, world.database.position_with(range(11, 99)))}
    commit = world.commit(KEY)
    assert a_reader(world).read(at_least=made_up) is ReadOutcome.FILLED
    item = world.stores[NODE].peek(KEY)
    assert item is not None
    assert Filled.decode(item.value).stamps[0].position == world.database.position_with([commit.number])


# -- servers -------------------------------------------------------------------------------------------

UUID: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
ROWS: Final = ("`customers`", "`id` = %s", (1,))


@dataclass(slots=True)
class Server:
    """It shows the transactions up to ``shown``, and a row whose version is the last of them.

    ``logged``: the transactions in the log of a MariaDB primary. ``arrives``: the transactions that a replica shows
    after a wait. ``has_table``: an invalidator has prepared it. ``is_down``: no statement is answered.
    ``lock_error``: the error of a lock of the row, 0 for none.
    """

    shown: int
    name: str = "s1"
    epoch: int = 1
    logged: int = 0
    arrives: int = 0
    has_table: bool = True
    flavor: str = "mysql"
    is_down: bool = False
    lock_error: int = 0
    engine: str = "InnoDB"
    asked: list[str] = field(default_factory=list)

    def position(self, number: int) -> str:
        return f"{UUID}:1-{number}" if self.flavor == "mysql" else f"0-1-{number}"

    def variable(self, name: str) -> str:
        is_of_log = name in ("@@global.gtid_current_pos", "@@global.gtid_binlog_pos")
        return self.position(self.logged if is_of_log else self.shown)

    def heartbeats(self) -> Sequence[tuple[str, int, str, int]]:
        return [(EPOCH_ROW, self.epoch, "", 0)] if self.has_table else []

    def version(self, _: tuple[str, int]) -> int:
        return self.shown

    def freeze(self) -> Server:
        return Server(self.shown, self.name, flavor=self.flavor)


class Asked(Session):
    """A session on one server, or behind a proxy that moves it on to the next server at a statement on rows."""

    def __init__(self, *places: Server) -> None:
        super().__init__(self.reach_next)
        self._places = list(places)

    def reach_next(self, kind: str) -> Server:
        if kind == "rows" and len(self._places) > 1:
            self._places.pop(0)
        return self._places[0]

    def answer(self, sql: str, keys: Sequence[Any]) -> tuple[list[str], list[tuple[Any, ...]]]:
        server = self._places[0]
        self.engine = server.engine
        if server.is_down:
            raise pymysql.err.OperationalError(2013, "Lost connection")
        if "_WAIT" in sql or "WAIT_" in sql:
            server.asked.append("wait")
            server.shown = max(server.shown, server.arrives)
        else:
            server.asked.append(kind_of(sql))
        return super().answer(sql, keys)

    def lock(self, table: str, keys: Sequence[Any]) -> None:
        if code := self._places[0].lock_error:
            raise pymysql.err.OperationalError(code, "a writer holds the row")


def open_shard(
    monkeypatch: pytest.MonkeyPatch,
    primary: Server,
    *replicas: Server | tuple[Server, ...],
    wait_ms: int = 50,
    miss_wait_ms: int = 0,
) -> ShardDatabase:
    """A shard of these servers; a tuple is a proxy that begins on the first of them."""
    flavor: Any = primary.flavor
    addresses = [ServerAddress(f"replica{number}") for number in range(len(replicas))]
    places = {address.host: each for address, each in zip(addresses, replicas, strict=True)}

    def connect(address: ServerAddress, **_: Any) -> Asked:
        place = places.get(address.host, primary)
        return Asked(*place) if isinstance(place, tuple) else Asked(place)

    monkeypatch.setattr(CONNECT, connect)
    shard = Shard(primary=ServerAddress("primary"), replicas=tuple(addresses), lineage=LINEAGE)
    keyspace = Keyspace(
        name="shop", flavor=flavor, shards=(shard,), at_least_wait_ms=wait_ms, miss_wait_ms=miss_wait_ms
    )
    database = Database(keyspace)
    read_in_order(database)
    return database.find_shard(None)


def commit(number: int, flavor: str = "mysql", epoch: int = 1, lineage: str = LINEAGE) -> EventToken:
    text = f"{UUID}:{number}" if flavor == "mysql" else f"0-1-{number}"
    return EventToken(lineage, "-", epoch, 0, parse_position(flavor, text))


def version_read(shard: ShardDatabase, asked: EventToken | None) -> int:
    """By a single row, by a snapshot, and by a query: all three keep to the commit."""
    rows, _ = shard.rows_with_token(*ROWS, asked)
    loaded, _ = shard.snapshot(load_row, asked)
    queried = shard.query("SELECT * FROM customers WHERE id = %s", (1,), at_least=asked).rows
    (version,) = {int(row["version"]) for row in (*rows, *loaded, *queried)}
    return version


def load_row(connection: LoaderConnection) -> list[dict[str, Any]]:
    return connection.query("SELECT * FROM customers WHERE id = %s", (1,))


def test_a_server_that_lacks_the_own_commit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas are behind; the primary shows the commit."""

    def read_own() -> int:
        shard = open_shard(monkeypatch, Server(12), Server(10), Server(11))
        return version_read(shard, commit(12))

    assert read_own() == 12
    monkeypatch.setattr(ShardDatabase, "_read_start", lambda self, connection, *_, **__: self.read_token(connection))
    assert read_own() == 10


def test_a_replica_that_has_the_commit_is_read() -> None:
    with pytest.MonkeyPatch.context() as patch:
        late, good, primary = Server(10), Server(12), Server(13)
        assert version_read(open_shard(patch, primary, late, good), commit(12)) == 12
        assert primary.asked == []
        assert "wait" not in (*late.asked, *good.asked), "only the last replica is waited for"


def test_the_last_replica_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    late, last, primary = Server(10), Server(10, arrives=12), Server(13)
    rows, token = open_shard(monkeypatch, primary, late, last).rows_with_token(*ROWS, commit(12))
    assert ([row["version"] for row in rows], primary.asked) == ([12], [])
    assert token is not None
    assert str(token.position) == f"{UUID}:1-12", "the token was read again"
    assert last.asked == ["set", "token", "wait", "token", "rows"]


def test_without_a_bound_no_replica_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    last, primary = Server(10, arrives=12), Server(12)
    assert version_read(open_shard(monkeypatch, primary, last, wait_ms=0), commit(12)) == 12
    assert "wait" not in last.asked


def test_a_wait_in_vain_ends_at_the_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reads after it do not wait: the replica is late by more than the bound."""
    last, primary = Server(10, arrives=11), Server(12)
    shard = open_shard(monkeypatch, primary, last)
    now = 0.0
    shard._choice._clock = lambda: now
    assert [version_read(shard, commit(12)) for _ in range(3)] == [12] * 3
    assert last.asked.count("wait") == 1
    now = REST_SECONDS
    last.arrives = 12
    assert version_read(shard, commit(12)) == 12
    assert last.asked.count("wait") == 2


def test_while_the_primary_is_down_each_read_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    last, primary = Server(10, arrives=11), Server(12)
    shard = open_shard(monkeypatch, primary, last)
    assert version_read(shard, commit(12)) == 12
    primary.is_down = True
    with pytest.raises(SourceUnavailable):
        shard.rows_with_token(*ROWS, commit(12))
    last.arrives = 12
    assert version_read(shard, commit(12)) == 12


def test_a_replica_behind_keeps_its_connection_and_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    late, primary = Server(10), Server(12)
    shard = open_shard(monkeypatch, primary, late)
    assert version_read(shard, commit(12)) == 12
    assert version_read(shard, None) == 10
    assert late.asked.count("set") == 1 + late.asked.count("start"), "once, and after each snapshot"


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
@pytest.mark.parametrize("asked", [{"epoch": 1}, {"epoch": 2, "lineage": "shop/previous"}], ids=["epoch", "topology"])
def test_of_a_previous_history_the_primary_has_what_is_left(
    flavor: str, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No position compares: the replica is not waited for, though it seems to have the commit."""
    replica, primary = (Server(99, epoch=2, flavor=flavor), Server(7, epoch=2, flavor=flavor))
    assert version_read(open_shard(monkeypatch, primary, replica), commit(12, flavor, **asked)) == 7
    assert "wait" not in replica.asked


@pytest.mark.parametrize(
    ("primary", "asked"),
    [
        (Server(11), commit(12)),
        (Server(99), commit(12, epoch=2)),
        (Server(99, has_table=False), commit(12)),
        (Server(10, logged=11, flavor="mariadb"), commit(12, "mariadb")),
        (Server(99, logged=99, flavor="mariadb"), commit(12, "mariadb", epoch=2)),
    ],
    ids=["lost", "a later epoch", "no epoch", "lost on MariaDB", "a later epoch of MariaDB"],
)
def test_a_commit_that_no_server_shows_is_an_error(
    primary: Server, asked: EventToken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old rows would be the past of the caller."""
    shard = open_shard(monkeypatch, primary, Server(5, flavor=primary.flavor))
    for read_it in (
        lambda: shard.rows_with_token(*ROWS, asked),
        lambda: shard.snapshot(load_row, asked),
        lambda: shard.query("SELECT * FROM customers WHERE id = %s", (1,), at_least=asked),
    ):
        with pytest.raises(SourceUnavailable, match="not known to show the commits that at_least names"):
            read_it()


def test_a_primary_of_mariadb_shows_each_commit_that_has_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """F2: its token is that of the heartbeat before the last one. Its log has the commit."""
    primary = Server(10, logged=12, flavor="mariadb")
    shard = open_shard(monkeypatch, primary, Server(5, flavor="mariadb"))
    _, token = shard.rows_with_token(*ROWS, commit(12, "mariadb"))
    assert token is not None
    assert str(token.position) == "0-1-10", "what may be stored is decided by the token as ever"


def test_a_log_that_another_server_tells_of_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy answers for the primary: token and rows are of one server, the log is of another."""
    behind = Server(10, "behind", logged=10, flavor="mariadb")
    ahead = Server(12, "ahead", logged=12, flavor="mariadb")
    shard = open_shard(monkeypatch, behind)
    monkeypatch.setattr(Asked, "reach_next", lambda _, kind: ahead if kind == "server" else behind)
    with pytest.raises(SourceUnavailable, match="not known to show"):
        shard.rows_with_token(*ROWS, commit(12, "mariadb"))


def test_rows_of_another_server_than_the_token_are_not_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """F107: a proxy moved the session on to a replica that lacks the commit."""

    def shard() -> ShardDatabase:
        return open_shard(monkeypatch, Server(13, "primary"), (Server(12, "ahead"), Server(10, "behind")))

    rows, _ = shard().rows_with_token(*ROWS, commit(12))
    assert [row["version"] for row in rows] == [13]
    loaded, _ = shard().snapshot(load_row, commit(12))
    assert [row["version"] for row in loaded] == [13]


def test_over_shards_each_keeps_to_its_own_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = {"r1": Server(10), "p1": Server(12), "r2": Server(20), "p2": Server(22)}
    monkeypatch.setattr(CONNECT, lambda address, **_: Asked(servers[address.host]))
    names = {"shop/-80": ("-80", "p1", "r1"), "shop/80-": ("80-", "p2", "r2")}
    shards = tuple(
        Shard(name=name, primary=ServerAddress(p), replicas=(ServerAddress(r),), lineage=lineage)
        for lineage, (name, p, r) in names.items()
    )
    database = Database(Keyspace(name="shop", flavor="mysql", shards=shards))

    def versions(at_least: Mapping[str, EventToken]) -> list[int]:
        rows, _ = database.snapshot([*names], load_row, at_least)
        return [row["version"] for row in rows]

    assert versions({}) == [10, 20]
    assert versions({"shop/-80": commit(12, lineage="shop/-80")}) == [12, 20]
    assert versions({"shop/80-": commit(21, lineage="shop/80-")}) == [10, 22]
    monkeypatch.setattr(ShardDatabase, "end_snapshot", lambda *_, **__: None)
    with pytest.raises(Behind):
        versions({"shop/80-": commit(21, lineage="shop/80-")})


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_the_wait_is_shorter_than_a_statement_may_take(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server would end it with an error."""
    statements: list[str] = []
    original = Asked.answer

    def answer(self: Asked, sql: str, keys: Sequence[Any]) -> tuple[list[str], list[tuple[Any, ...]]]:
        statements.append(sql)
        return original(self, sql, keys)

    monkeypatch.setattr(Asked, "answer", answer)
    primary, late = Server(12, logged=12, flavor=kind), Server(10, flavor=kind)
    shard = open_shard(monkeypatch, primary, late, wait_ms=60_000)
    shard.rows_with_token(*ROWS, commit(12, kind))
    (wait,) = [sql for sql in statements if "WAIT" in sql]
    assert "(%s, 4.000)" in wait
