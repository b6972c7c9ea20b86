"""The application's connections without servers: which failures cost a connection, and who is asked next."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pymysql
import pytest

from appclient.connection.pool import Pool
from appclient.connection.query import LoaderConnection, LoaderError
from appclient.database.atleast import demand_commits
from appclient.database.choice import RETRY_SECONDS
from appclient.database.database import Database
from appclient.database.servers import ServerAccess
from appclient.database.shard import ShardDatabase
from freshness.config.keyspace import Keyspace, Shard
from freshness.config.server import ServerAddress
from freshness.config.vtgate_address import VtgateAddress
from freshness.errors import (
    ConfigError,
    ConnectionsExhausted,
    FormatError,
    QueryTimedOut,
    SourceUnavailable,
    SourceUnsuitable,
)
from freshness.position import parse_position
from freshness.position.token import EventToken

FIRST, SECOND, PRIMARY = ServerAddress("10.0.0.1"), ServerAddress("10.0.0.2"), ServerAddress("10.0.0.9")
SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
GONE = pymysql.err.OperationalError(2006, "server has gone away")


@dataclass(eq=False)
class Connected:
    """A connection that only knows whether it is open. ``trouble``: the error of its first statement."""

    address: ServerAddress
    trouble: Exception | None = None
    is_open: bool = True
    statements: list[str] = field(default_factory=list)

    def cursor(self, _: object = None) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def fetchall(self) -> list[Any]:
        return []

    def execute(self, sql: str, params: object = None) -> None:
        self.statements.append(sql)
        if self.trouble is not None:
            raise self.trouble

    def _execute_command(self, *_: object) -> None:
        self.execute("RESET")

    def _read_ok_packet(self) -> None:
        return

    @property
    def open(self) -> bool:
        return self.is_open

    def close(self) -> None:
        assert self.is_open, "closed twice"
        self.is_open = False


@dataclass
class Servers:
    """All connections that were made; ``down`` refuse, ``troubles`` are given to the next ones."""

    made: list[Connected] = field(default_factory=list)
    down: set[ServerAddress] = field(default_factory=set)
    troubles: list[Exception] = field(default_factory=list)

    def connect(self, address: ServerAddress, *, read_timeout_seconds: float, network: Any) -> Connected:
        if address in self.down:
            raise SourceUnavailable(f"{address.host}: refused", hint="is the server up?")
        self.made.append(Connected(address, self.troubles.pop() if self.troubles else None))
        return self.made[-1]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    servers = Servers()
    monkeypatch.setattr("appclient.database.servers.connect", servers.connect)
    return servers


def open_database(connections_max: int = 32) -> ShardDatabase:
    shard = Shard(primary=PRIMARY, replicas=(FIRST, SECOND), lineage="shop/-")
    keyspace = Keyspace(name="shop", flavor="mysql", shards=(shard,))
    database = Database(keyspace, ServerAccess(connections_max=connections_max)).find_shard(None)
    database._choice._below = lambda _: 0  # no chance: the first replica is read first
    return database


@pytest.fixture
def database() -> ShardDatabase:
    return open_database()


def host(_: Any, address: ServerAddress) -> str:
    return address.host


def raising(*errors: Exception) -> Callable[[Any, ServerAddress], str]:
    """A read that fails with these, one after the other, and then answers."""
    left = list(errors)

    def read(connection: Any, address: ServerAddress) -> str:
        if left:
            raise left.pop(0)
        return address.host

    return read


def test_a_connection_is_used_again(servers: Servers, database: ShardDatabase) -> None:
    assert [database.run(host), database.run(host)] == [FIRST.host, FIRST.host]
    assert len(servers.made) == 1


def test_a_connection_that_was_closed_while_idle_is_made_anew_on_the_same_server(
    servers: Servers, database: ShardDatabase
) -> None:
    database.run(host)
    assert database.run(raising(GONE)) == FIRST.host
    assert [each.is_open for each in servers.made] == [False, True]


def test_a_server_that_fails_is_left_and_stays_left(servers: Servers, database: ShardDatabase) -> None:
    assert database.run(raising(GONE)) == SECOND.host, "a new connection that fails is no idle one"
    assert database.run(host) == SECOND.host
    assert [(each.address, each.is_open) for each in servers.made] == [(FIRST, False), (SECOND, True)]
    servers.down = {SECOND}
    assert database.run(raising(GONE)) == PRIMARY.host, "before one that failed a moment ago"
    servers.down = {SECOND, PRIMARY}
    assert database.run(raising(GONE)) == FIRST.host, "and when all else fails that one after all"


def test_a_server_that_failed_is_tried_again_after_a_while(servers: Servers) -> None:
    now = [1000.0]
    shard = Shard(primary=PRIMARY, replicas=(FIRST,), lineage="shop/-")
    database = ShardDatabase("mysql", shard, ServerAccess(clock=lambda: now[0]))
    servers.down = {FIRST}
    assert database.run(host) == PRIMARY.host
    servers.down = set()
    now[0] += RETRY_SECONDS - 1
    assert database.run(host) == PRIMARY.host
    now[0] += 1
    assert database.run(host) == FIRST.host
    assert database.run(host) == FIRST.host


def test_without_replicas_the_primary_is_asked_once(servers: Servers) -> None:
    database = ShardDatabase("mysql", Shard(primary=PRIMARY, lineage="shop/-"))
    servers.down = {PRIMARY}
    with pytest.raises(SourceUnavailable) as caught:
        database.run(host)
    assert caught.value.message.count(PRIMARY.host) == 1


def test_a_session_behind_vtgate_begins_on_the_shard_that_it_reads(servers: Servers) -> None:
    """With the keyspace alone as its database, vtgate would set it up on the primary of another shard."""
    vtgate = VtgateAddress("gate", "shop", tablet_type="rdonly")
    shard = Shard(primary=PRIMARY, name="80-", lineage="shop/80-", vtgate=vtgate)
    keyspace = Keyspace(name="shop", flavor="vitess", shards=(shard,))
    assert Database(keyspace).find_shard("80-").run(host) == PRIMARY.host
    assert [each.address.database for each in servers.made] == ["shop:80-@rdonly"]


def test_a_primary_that_refuses_the_account_does_not_hide_that_the_replicas_are_down(
    servers: Servers, database: ShardDatabase
) -> None:
    servers.down = {FIRST, SECOND}
    denied = pymysql.err.OperationalError(1142, "SELECT command denied")
    with pytest.raises(SourceUnavailable, match=r"10\.0\.0\.1: refused.*SELECT command denied") as caught:
        database.run(raising(denied))
    assert caught.value.hint == "is the server up?"
    with pytest.raises(SourceUnavailable, match=r"answers: 10\.0\.0\.1: refused"):
        database.run(raising(denied))
    servers.down = {SECOND}
    assert database.run(raising(denied)) == FIRST.host


def test_every_server_that_failed_is_named(servers: Servers, database: ShardDatabase) -> None:
    servers.down = {FIRST, SECOND, PRIMARY}
    every = r"no server of shop/- answers: 10\.0\.0\.1.*; 10\.0\.0\.2.*; 10\.0\.0\.9"
    with pytest.raises(SourceUnavailable, match=every):
        database.run(host)


def test_the_loaders_own_error_costs_no_connection(
    servers: Servers, database: ShardDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShardDatabase, "read_token", lambda *_: (None, ""))

    def load(_: LoaderConnection) -> int:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        database.snapshot(load)
    assert database.run(host) == FIRST.host
    assert [each.is_open for each in servers.made] == [True]
    assert servers.made[0].statements[-2] == "RESET", "the snapshot is over"


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("prices.json"),
        TimeoutError("of requests"),
        pymysql.err.OperationalError(2013, "of another database"),
        SourceUnavailable("another object has no server", hint="is it up?"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_loaders_own_whatever_its_class(
    servers: Servers, database: ShardDatabase, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(ShardDatabase, "read_token", lambda *_: (None, ""))
    calls: list[LoaderConnection] = []

    def load(connection: LoaderConnection) -> int:
        calls.append(connection)
        raise error

    with pytest.raises(type(error)) as caught:
        database.snapshot(load)
    assert caught.value is error
    assert len(calls) == 1, "no server has failed"
    assert [(each.address, each.is_open) for each in servers.made] == [(FIRST, True)]


def test_a_loader_runs_again_if_our_server_failed_under_it(
    servers: Servers, database: ShardDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShardDatabase, "read_token", lambda *_: (None, ""))
    calls: list[LoaderConnection] = []

    def load(connection: LoaderConnection) -> str:
        calls.append(connection)
        if len(calls) == 1:
            servers.made[0].trouble = GONE
            connection.query("SELECT 1")
        return "loaded"

    assert database.snapshot(load) == ("loaded", None)
    assert [each.address for each in servers.made] == [FIRST, SECOND]


class Interrupted(Exception):
    """What a signal handler raises, wherever the program happens to be."""


@pytest.mark.parametrize("interruption", [Interrupted(), KeyboardInterrupt()])
def test_an_interrupted_statement_costs_the_connection(
    servers: Servers, database: ShardDatabase, monkeypatch: pytest.MonkeyPatch, interruption: BaseException
) -> None:
    """Its answer may still be under way, and would be taken for the answer to the next statement (F46)."""
    monkeypatch.setattr(ShardDatabase, "read_token", lambda *_: (None, ""))

    def load(connection: LoaderConnection) -> int:
        servers.made[0].trouble = interruption  # type: ignore[assignment]
        return len(connection.query("SELECT 1"))

    with pytest.raises(type(interruption)):
        database.snapshot(load)
    assert database.run(host) == FIRST.host
    assert [each.is_open for each in servers.made] == [False, True]


def test_a_loader_that_catches_an_interruption_costs_the_connection_too(
    servers: Servers, database: ShardDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShardDatabase, "read_token", lambda *_: (None, ""))

    def load(connection: LoaderConnection) -> str:
        servers.made[0].trouble = Interrupted()
        with contextlib.suppress(Interrupted):
            connection.query("SELECT 1")
        return "a substitute"

    assert database.snapshot(load) == ("a substitute", None)
    assert not servers.made[0].is_open
    database.close()
    assert "RESET" not in servers.made[0].statements, "its answer would be that of the interrupted statement"


def test_an_interruption_between_two_statements_of_ours_costs_the_connection(
    servers: Servers, database: ShardDatabase
) -> None:
    with pytest.raises(Interrupted):
        database.run(raising(Interrupted()))
    assert database.run(host) == FIRST.host
    assert [each.is_open for each in servers.made] == [False, True]


def test_a_read_inside_another_one_has_a_connection_of_its_own(servers: Servers, database: ShardDatabase) -> None:
    """On the outer one's it would see the outer one's snapshot, which is older than its own token (F18)."""
    seen: list[Any] = []

    def inner(connection: Any, _: ServerAddress) -> str:
        seen.append(connection)
        return "inner"

    def outer(connection: Any, _: ServerAddress) -> str:
        seen.append(connection)
        return database.run(inner)

    for _ in range(3):
        assert database.run(outer) == "inner"
    assert all(one is not other for one, other in zip(seen[::2], seen[1::2], strict=True))
    assert len(servers.made) == 2, "both are used again"


# -- each defence, planted out -------------------------------------------------------------------------


def test_a_connection_that_stays_in_its_slot_is_seen_by_a_read_inside_another_one(
    servers: Servers, database: ShardDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Pool.take

    def keep(self: Pool[Any]) -> Any:
        connection = take(self)
        if connection is not None:
            self._idle.append(connection)
        return connection

    monkeypatch.setattr(Pool, "take", keep)
    database.run(host)
    with pytest.raises(AssertionError):
        test_a_read_inside_another_one_has_a_connection_of_its_own(servers, database)


def test_an_interrupted_connection_that_counts_as_in_step_is_used_again(
    servers: Servers, database: ShardDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_anyway(load: Callable[[LoaderConnection], Any], opened: LoaderConnection) -> Any:
        try:
            return load(opened)
        except Interrupted as error:
            servers.made[0].trouble = None  # the answer is still under way, and nobody looks
            opened.is_in_step = True
            return LoaderError(error)

    monkeypatch.setattr("appclient.database.shard.run_loader", load_anyway)
    with pytest.raises(AssertionError):
        test_an_interrupted_statement_costs_the_connection(servers, database, monkeypatch, Interrupted())


def test_no_more_connections_are_kept_than_bounded(servers: Servers) -> None:
    """Reads inside others do not wait, and cost connections of their own."""
    database = open_database(connections_max=2)

    def nest(depth: int) -> int:
        return database.run(lambda *_: nest(depth - 1)) if depth else 0

    nest(4)
    assert len(servers.made) == 4
    assert sum(each.is_open for each in servers.made) == 2
    nest(2)
    assert len(servers.made) == 4, "those that are kept are used again"


def test_a_read_that_finds_all_connections_in_use_says_so_and_blames_no_server(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appclient.connection.pool.WAIT_SECONDS", 0.01)
    database = open_database(connections_max=1)
    failed: list[BaseException] = []

    def read_in_vain() -> None:
        try:
            database.run(host)
        except ConnectionsExhausted as error:
            failed.append(error)

    def hold(*_: Any) -> None:
        thread = threading.Thread(target=read_in_vain)
        thread.start()
        thread.join()

    database.run(hold)
    assert "all 1 connections to " in str(failed[0])
    assert "connections_max" in str(failed[0])
    assert len(servers.made) == 1, "no other server is asked instead"
    assert database.run(host) == FIRST.host


def test_a_wrong_statement_is_not_tried_elsewhere(servers: Servers, database: ShardDatabase) -> None:
    with pytest.raises(SourceUnsuitable, match="syntax"):
        database.run(raising(pymysql.err.ProgrammingError(1064, "syntax")))
    assert [(each.address, each.is_open) for each in servers.made] == [(FIRST, False)]


def test_the_text_of_none_is_no_token(servers: Servers) -> None:
    """``str()`` of a token that a read does not have."""
    shard = Shard(primary=PRIMARY, replicas=(), lineage="shop/-")
    database = Database(Keyspace(name="shop", flavor="mysql", shards=(shard,)))
    with pytest.raises(FormatError, match=r"had no token.*no invalidator has prepared that server"):
        database.query("SELECT 1", compare_event_token=str(None))
    assert servers.made == []


TOO_LONG = pymysql.err.OperationalError(3024, "maximum statement execution time exceeded")


def unanswered() -> Exception:
    """pymysql's error for a socket on which nothing came in time."""
    try:
        raise TimeoutError("timed out")
    except TimeoutError:
        try:
            raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query (timed out)")
        except pymysql.MySQLError as error:
            return error


def test_a_statement_that_took_too_long_is_not_tried_elsewhere(servers: Servers, database: ShardDatabase) -> None:
    with pytest.raises(QueryTimedOut, match="3024") as caught:
        database.run(raising(TOO_LONG))
    assert "query_timeout_seconds" in caught.value.hint
    assert [(each.address, each.is_open) for each in servers.made] == [(FIRST, False)]
    assert database.run(host) == FIRST.host, "the server answers; it was the statement"
    with pytest.raises(QueryTimedOut):
        database.run(raising(TOO_LONG))  # on a connection that was kept
    assert {each.address for each in servers.made} == {FIRST}


def test_a_statement_without_an_answer_is_not_repeated_and_its_server_is_left(
    servers: Servers, database: ShardDatabase
) -> None:
    """It may be running still. The next statement goes to another server."""
    database.run(host)
    servers.made[0].trouble = unanswered()
    with pytest.raises(QueryTimedOut, match=r"10\.0\.0\.1:3306"):
        database.query("SELECT 1")
    assert [(each.address, each.is_open) for each in servers.made] == [(FIRST, False)]
    assert database.run(host) == SECOND.host


def test_a_server_that_does_not_even_tell_its_position_is_left_for_another(
    servers: Servers, database: ShardDatabase
) -> None:
    assert database.run(raising(unanswered())) == SECOND.host


def test_a_session_only_reads_and_bounds_each_statement_on_the_server(servers: Servers) -> None:
    shard = Shard(primary=PRIMARY, lineage="shop/-")
    for flavor, expected in (
        ("mysql", ("transaction_read_only = 1", "max_execution_time = 1500")),
        ("mariadb", ("tx_read_only = 1", "max_statement_time = 1.500")),
    ):
        ShardDatabase(flavor, shard, ServerAccess(timeout_seconds=1.5)).run(host)
        [statement] = servers.made[-1].statements
        assert all(part in statement for part in expected)


def test_a_statement_that_writes_is_an_error_of_the_statement(servers: Servers, database: ShardDatabase) -> None:
    refused = pymysql.err.OperationalError(1792, "Cannot execute statement in a READ ONLY transaction.")
    with pytest.raises(SourceUnsuitable, match="READ ONLY") as caught:
        database.run(raising(refused))
    assert "connection of your own" in caught.value.hint
    assert [each.address for each in servers.made] == [FIRST]


def test_where_a_time_out_is_taken_for_a_failure_the_statement_runs_three_times(
    servers: Servers, database: ShardDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("freshness.database.connection._TIMED_OUT", frozenset())
    with pytest.raises(SourceUnavailable) as caught:
        database.run(raising(TOO_LONG, TOO_LONG, TOO_LONG))
    assert not isinstance(caught.value, QueryTimedOut)
    assert [each.address for each in servers.made] == [FIRST, SECOND, PRIMARY]


def test_a_connection_that_cannot_be_set_up_is_closed(servers: Servers, database: ShardDatabase) -> None:
    servers.troubles = [GONE]
    assert database.run(host) == SECOND.host
    assert [each.is_open for each in servers.made] == [False, True]


def test_a_closed_database_connects_again(servers: Servers, database: ShardDatabase) -> None:
    database.run(host)
    database.close()
    database.close()
    assert database.run(host) == FIRST.host
    assert [each.is_open for each in servers.made] == [False, True]


def test_a_forked_process_leaves_its_parents_connections_alone(
    servers: Servers, database: ShardDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share the socket: what the child sends, even a farewell, the parent's server takes for the parent's."""
    database.run(host)
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    database.close()
    assert database.run(host) == FIRST.host
    assert [each.is_open for each in servers.made] == [True, True]


# -- several shards ------------------------------------------------------------------------------------


@pytest.fixture
def sharded() -> Database:
    shards = tuple(
        Shard(name=name, primary=address, lineage=f"shop/{name}", serving=serving)
        for name, address, serving in (
            ("-80", FIRST, True),
            ("80-", SECOND, True),
            ("-", ServerAddress("10.0.0.3"), False),
        )
    )
    return Database(Keyspace(name="shop", flavor="mysql", shards=shards))


def test_a_shard_is_named_where_there_are_several(sharded: Database) -> None:
    with pytest.raises(ConfigError, match="needs the name of a shard"):
        sharded.find_shard(None)
    with pytest.raises(ConfigError, match="has no serving shard '-'"):
        sharded.find_shard("-")
    assert sharded.find_shard("80-") is sharded.shards["shop/80-"]


def test_a_read_over_shards_takes_every_token_before_the_first_row(
    servers: Servers, sharded: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def read_token(self: ShardDatabase, _: object) -> tuple[None, str]:
        told.append(f"token {self._shard.name}")
        return None, ""

    monkeypatch.setattr(ShardDatabase, "read_token", read_token)

    def load(connection: LoaderConnection) -> int:
        told.append("rows")
        return len(connection._connections)

    assert sharded.snapshot(("shop/-80", "shop/80-"), load) == (2, [None, None])
    assert told == ["token -80", "token 80-", "rows"]


@pytest.mark.parametrize("lineages", [("shop/-80",), ("shop/-80", "shop/80-")])
def test_reads_inside_a_snapshot_are_asked_for_its_commits(
    servers: Servers, sharded: Database, monkeypatch: pytest.MonkeyPatch, lineages: tuple[str, ...]
) -> None:
    """F18: a part that lacks what the value around it was read with would stay old."""

    def read_token(self: ShardDatabase, _: object) -> tuple[EventToken, str]:
        return self.make_token(1, parse_position("mysql", f"{SERVER}:1-5")), "server"

    monkeypatch.setattr(ShardDatabase, "read_token", read_token)
    monkeypatch.setattr(ShardDatabase, "_ask", lambda *_: ([], [("server", None)]))
    asked, _ = sharded.snapshot(lineages, lambda _: demand_commits(None, [sharded.keyspace]))
    assert {lineage: str(each.position) for lineage, each in asked.items()} == dict.fromkeys(
        lineages, f"{SERVER}:1-5"
    )


@pytest.mark.parametrize("lineages", [("shop/-80",), ("shop/-80", "shop/80-")])
def test_a_value_with_a_part_of_another_read_has_no_bound(
    servers: Servers, sharded: Database, monkeypatch: pytest.MonkeyPatch, lineages: tuple[str, ...]
) -> None:
    """I11: the part may show what this server does not."""
    position = f"{SERVER}:1-5"

    def read_token(self: ShardDatabase, _: object) -> tuple[EventToken, str]:
        return self.make_token(1, parse_position("mysql", position)), "server"

    monkeypatch.setattr(ShardDatabase, "read_token", read_token)
    monkeypatch.setattr(ShardDatabase, "_ask", lambda *_: ([], [("server", position)]))
    for load, expected in ((lambda _: None, position), (lambda _: demand_commits(None, []), "None")):
        _, tokens = sharded.snapshot(lineages, load)
        assert [str(token and token.until) for token in tokens] == [expected] * len(lineages)


def test_commits_of_shards_that_a_second_server_answered_for_are_not_shown(
    servers: Servers, sharded: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether the rows are of the server that has them (F107, I9)."""
    token = sharded.shards["shop/-80"].make_token(1, parse_position("mysql", f"{SERVER}:1-5"))
    monkeypatch.setattr(ShardDatabase, "read_token", lambda self, _: (replace(token, lineage=self.lineage), "server"))
    monkeypatch.setattr(ShardDatabase, "_ask", lambda *_: ([], [("another", None)]))
    lineages = ("shop/-80", "shop/80-")
    assert sharded.snapshot(lineages, lambda _: "rows") == ("rows", [None, None])
    with pytest.raises(SourceUnavailable, match="not known to show the commits"):
        sharded.snapshot(lineages, lambda _: "rows", {"shop/-80": token})


def test_a_read_over_shards_takes_each_token_before_its_snapshot(
    servers: Servers, sharded: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F18: else the rows may be older than the token."""

    def note(_: ShardDatabase, connection: Any) -> tuple[None, str]:
        connection.statements.append("token")
        return None, ""

    monkeypatch.setattr(ShardDatabase, "read_token", note)
    sharded.snapshot(("shop/-80", "shop/80-"), lambda _: None)
    for each in servers.made:
        session, *rest, again = each.statements
        assert session.startswith("SET NAMES utf8mb4, SESSION")
        assert session == again
        assert rest == ["token", "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY", "RESET"]


def test_after_a_failed_read_over_shards_no_connection_is_used_again(
    servers: Servers, sharded: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShardDatabase, "read_token", lambda *_: (None, ""))

    def load(connection: LoaderConnection) -> int:
        servers.made[1].trouble = GONE
        return len(connection.query("SELECT 1"))

    with pytest.raises(SourceUnavailable):
        sharded.snapshot(("shop/-80", "shop/80-"), load)
    assert [each.is_open for each in servers.made] == [False, False]


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_a_loader_that_raises_over_shards_costs_connections_only_where_an_answer_is_open(
    servers: Servers, sharded: Database, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    monkeypatch.setattr(ShardDatabase, "read_token", lambda *_: (None, ""))

    def load(connection: LoaderConnection) -> int:
        if is_interrupted:
            servers.made[1].trouble = Interrupted()
            connection.query("SELECT 1")
        raise Interrupted

    with pytest.raises(Interrupted):
        sharded.snapshot(("shop/-80", "shop/80-"), load)
    assert [each.is_open for each in servers.made] == [not is_interrupted] * 2


def test_a_connection_with_an_open_snapshot_is_nobody_elses(
    servers: Servers, database: ShardDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F18: another read on it would see the older snapshot."""
    monkeypatch.setattr(ShardDatabase, "read_token", lambda *_: (None, ""))
    database.begin_snapshot()
    database.run(host)
    assert len(servers.made) == 2


def test_the_answer_to_another_question_is_none(database: ShardDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """F46: the connection is one answer behind."""
    connection: Any = Connected(FIRST)
    for name in ("question_1", "question_2"):
        monkeypatch.setattr(Connected, "description", [(name,)], raising=False)
        if name == "question_1":
            assert database._ask(connection, "question_1", "SELECT 1") == (["question_1"], [])
        else:
            with pytest.raises(SourceUnavailable, match="another question"):
                database._ask(connection, "question_1", "SELECT 1")
