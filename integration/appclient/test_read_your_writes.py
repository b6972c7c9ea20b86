"""A session reads at least its own commits, through the cache and through replicas that lag, on real servers (I9)."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import (
    AsyncCache,
    Cache,
    CommitToken,
    ConfigError,
    Explanation,
    GtidConnection,
    LoaderConnection,
    ReadOutcome,
    SourceUnsuitable,
)
from appclient.database.shard import ShardDatabase
from freshness.algorithm.view import NodeView
from freshness.database.connection import executed_position
from integration.configuration import PROFILE
from integration.harness import CUSTOMERS_TABLE, ORDERS_TABLE, PATIENT, System, running_system, wait_for_hits
from integration.servers import Flavor, database_pair

LAG_SECONDS: Final = 1
SESSIONS: Final = 40
CUSTOMER: Final = '[objects.customer]\ntable = "customers"\nfill_from_log = true\n'
UPDATE: Final = "UPDATE customers SET v = v + 1 WHERE id = %s"


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Flavor], System]]:
    """One system for each flavor, with a replica that keeps behind, started when it is first asked for."""
    with ExitStack() as stack:
        running: dict[Flavor, System] = {}

        def start(flavor: Flavor) -> System:
            if flavor not in running:
                pair = stack.enter_context(database_pair(flavor))
                tables = (CUSTOMERS_TABLE, ORDERS_TABLE)
                folder = tmp_path_factory.mktemp(flavor)
                manager = running_system(pair, folder, tables=tables, objects=CUSTOMER + PROFILE, cache=PATIENT)
                system = running[flavor] = stack.enter_context(manager)
                rows = ", ".join(f"({key}, 'n', 0)" for key in range(1000))
                system.execute(f"INSERT INTO customers VALUES {rows}")
                system.settle()
            return running[flavor]

        yield start


@pytest.fixture
def system(systems: Callable[[Flavor], System], flavor: Flavor) -> System:
    return systems(flavor)


@pytest.fixture
def cache(system: System) -> Iterator[Cache]:
    with closing(system.open_cache()) as opened:
        opened.loader("profile")(load_profile)
        yield opened


def load_profile(database: LoaderConnection, customer_id: int) -> dict[str, Any]:
    customer = database.query_one("SELECT * FROM customers WHERE id = %s", (customer_id,))
    return {"customer": customer}


@contextmanager
def writing(system: System, *, tracks: bool = False) -> Iterator[Any]:
    """The application's own connection to the primary. ``tracks``: one that reads the GTIDs of its commits."""
    connection: Any
    if tracks:
        connection = GtidConnection(
            host="127.0.0.1",
            port=system.pair.primary.port,
            user="app",
            password="app",
            database="shop",
            autocommit=True,
            ssl_disabled=True,
        )
    else:
        connection = system.pair.primary.connect("shop")
    with closing(connection):
        yield connection


@contextmanager
def stopped_replica(system: System) -> Iterator[None]:
    system.pair.replica.stop_replication()
    try:
        yield
    finally:
        system.pair.replica.start_replication()
        system.pair.wait_caught_up()


def change(connection: Any, key: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(UPDATE, (key,))


def own_token(cache: Cache, connection: Any) -> CommitToken:
    token = cache.database().commit_token(connection)
    assert token is not None
    return token


# -- pairs of a write and a read -----------------------------------------------------------------------


def count_pairs(system: System, cache: Cache, rounds: int, *, asks: bool = True) -> tuple[int, int, int]:
    """(hits of them at once, hits in all, reads of the past). In each round every session writes its row and then
    reads it: at once, or, in every second round, when the nodes have acknowledged the writes."""
    keys = range(SESSIONS)
    wait_for_hits(cache, "customer", keys, system.describe)
    versions = {key: cache.get("customer", key)["v"] for key in keys}
    at_once, hits, past = 0, 0, 0
    with writing(system) as plain, writing(system, tracks=system.pair.primary.flavor == "mysql") as other:
        for number in range(rounds):
            tokens = {}
            for key in keys:
                connection = other if key % 2 else plain
                change(connection, key)
                versions[key] += 1
                tokens[key] = own_token(cache, connection)
            is_acknowledged = number % 2 == 1
            if is_acknowledged:
                system.wait_covered()
            for key in keys:
                at_least = str(tokens[key]) if asks else None
                read: Explanation = cache.get("customer", key, at_least=at_least, explain=True)
                past += read.value["v"] < versions[key]
                hits += read.is_hit
                at_once += read.is_hit and not is_acknowledged
    return at_once, hits, past


@pytest.mark.parametrize("pairs", [1_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_no_pair_reads_its_past_and_most_are_hits(system: System, cache: Cache, pairs: int) -> None:
    system.pair.replica.replicate_from(system.pair.primary, delay_seconds=LAG_SECONDS)
    try:
        at_once, hits, past = count_pairs(system, cache, pairs // SESSIONS)
    finally:
        system.pair.replica.replicate_from(system.pair.primary)
        system.settle()
    print(f"{pairs} pairs: {hits} hits, {at_once} of them at once, {past} read their past")
    assert past == 0
    assert hits >= pairs / 2
    system.assert_none_stale(cache, "customer", range(SESSIONS))


def test_without_the_defence_some_read_their_past(
    system: System, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The invalidator stands still, and so does the replica: entries and rows are from before the commit."""
    wait_for_hits(cache, "customer", [100], system.describe)
    with writing(system) as connection, stopped_replica(system):
        system.invalidator.pause()
        try:
            change(connection, 100)
            token = own_token(cache, connection)
            for key, outcome in ((100, ReadOutcome.HIT), (101, ReadOutcome.FILLED)):
                assert read(cache, key, None) == (0, outcome), "its past"
            assert read(cache, 100, token)[0] == 1
            assert read(cache, 100, token)[1] is ReadOutcome.BEHIND
            with monkeypatch.context() as patch:
                patch.setattr(NodeView, "shows", lambda *_: True)
                assert read(cache, 100, token) == (0, ReadOutcome.HIT)
            with monkeypatch.context() as patch:
                patch.setattr(
                    ShardDatabase, "_read_start", lambda own, connection, *_, **__: own.read_token(connection)
                )
                assert read(cache, 100, token) == (0, ReadOutcome.BEHIND)
        finally:
            system.invalidator.resume()


def read(cache: Cache, key: int, at_least: CommitToken | None) -> tuple[int, ReadOutcome]:
    answer: Explanation = cache.get("customer", key, at_least=at_least, explain=True)
    return answer.value["v"], answer.outcome


# -- which server a read uses --------------------------------------------------------------------------


def test_a_read_waits_for_the_replica_and_then_goes_to_the_primary(system: System, tmp_path: Path) -> None:
    line = f'flavor = "{system.pair.primary.flavor}"'
    path = tmp_path / "freshness.toml"
    text = system.config_path.read_text()

    def server_of(wait_ms: int, token: CommitToken) -> str:
        path.write_text(text.replace(line, f"{line}\nat_least_wait_ms = {wait_ms}\nquery_timeout_seconds = 60"))
        with closing(Cache.open(path)) as cache:
            result = cache.database().query("SELECT v FROM customers WHERE id = 200", at_least=token)
            assert result.rows == [{"v": system.execute("SELECT v FROM customers WHERE id = 200")[0][0]}]
            return result.extras.server

    primary, replica = (f"127.0.0.1:{each.port}" for each in (system.pair.primary, system.pair.replica))
    with writing(system) as connection, closing(system.open_cache()) as cache:
        with stopped_replica(system):
            change(connection, 200)
            token = own_token(cache, connection)
            assert server_of(20, token) == primary
            starting = threading.Timer(0.3, system.pair.replica.start_replication)
            starting.start()
            assert server_of(60_000, token) == replica, "it got the commit meanwhile"
            starting.join()
        assert server_of(0, token) == replica


def test_a_profile_of_the_own_commit(system: System, cache: Cache) -> None:
    with writing(system) as connection, stopped_replica(system):
        cache.get("profile", 210)
        change(connection, 210)
        token = own_token(cache, connection)
        assert cache.get("profile", 210, at_least=token)["customer"]["v"] == 1
        assert cache.get_many("profile", [210, 211], at_least=token)[210]["customer"]["v"] == 1


# -- tokens --------------------------------------------------------------------------------------------


def test_a_session_that_has_committed_nothing_has_no_token(system: System, cache: Cache) -> None:
    tracks = system.pair.primary.flavor == "mysql"
    with writing(system, tracks=tracks) as connection:
        assert cache.database().commit_token(connection) is None
        connection.begin()
        change(connection, 220)
        with pytest.raises(ConfigError, match="open transaction"):
            cache.database().commit_token(connection)
        connection.rollback()
        assert cache.database().commit_token(connection) is None


def test_a_tracking_connection_knows_each_kind_of_commit(systems: Callable[[Flavor], System]) -> None:
    """By commit(), by a statement, by autocommit: GTIDs that were executed just then, without a statement more."""
    system = systems("mysql")
    with writing(system, tracks=True) as connection, closing(system.open_cache()) as cache:
        database = cache.database()

        def executed_while(work: Callable[[], None]) -> Any:
            with system.pair.primary.connect() as other:
                before = executed_position(other, "mysql")
                work()
                return executed_position(other, "mysql"), before

        def by_method() -> None:
            connection.begin()
            change(connection, 230)
            change(connection, 231)
            connection.commit()

        def by_statement() -> None:
            with connection.cursor() as cursor:
                cursor.execute("BEGIN")
            change(connection, 230)
            with connection.cursor() as cursor:
                cursor.execute("COMMIT")

        for work in (by_method, by_statement, lambda: change(connection, 230)):
            after, before = executed_while(work)
            asked = count_questions(connection)
            (token,) = own_token(cache, connection).tokens
            assert count_questions(connection) == asked + 1, "the question itself alone"
            assert after.contains(token.position)
            assert before.intersection(token.position).is_empty
            assert database.commit_token(connection) is None, "each commit once"
        connection.close()
        connection.connect()
        change(connection, 230)
        assert own_token(cache, connection).tokens[0].position.interval_count == 1


def count_questions(connection: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Questions'")
        return int(cursor.fetchone()[1])


def test_an_ordinary_connection_gives_a_token_on_both(system: System, cache: Cache) -> None:
    with writing(system) as connection:
        change(connection, 240)
        (token,) = own_token(cache, connection).tokens
        assert (token.lineage, token.epoch) == ("shop/-", 1)
        own = executed_position(connection, system.pair.primary.flavor)
        assert own.contains(token.position)


def test_mariadb_tells_no_gtids_of_commits(systems: Callable[[Flavor], System]) -> None:
    with pytest.raises(SourceUnsuitable, match="does not tell the GTIDs"), writing(systems("mariadb"), tracks=True):
        pass


def test_a_task_that_asked_for_its_commit_itself(system: System) -> None:
    """Asynchronous drivers are asked by the application."""
    flavor = system.pair.primary.flavor
    sql = "SELECT @@last_gtid" if flavor == "mariadb" else "SELECT @@global.gtid_executed"

    async def read_own(gtids: str) -> tuple[Any, Any, list[Any]]:
        async with await AsyncCache.open(system.config_path) as cache:
            token = await cache.database().commit_token_of(gtids)
            one = await cache.get("customer", 280, at_least=token)
            many = await cache.get_many("customer", [280, 281], at_least=token)
            rows = await cache.database().query("SELECT v FROM customers WHERE id = 280", at_least=token)
            return one["v"], many[280]["v"], rows.rows

    with writing(system) as connection, stopped_replica(system):
        change(connection, 280)
        with connection.cursor() as cursor:
            cursor.execute(sql)
            (gtids,) = cursor.fetchone()
        assert asyncio.run(read_own(gtids)) == (1, 1, [{"v": 1}])


# -- the application's own transaction -----------------------------------------------------------------


def test_uncommitted_rows_are_read_on_the_own_connection_and_not_stored(system: System, cache: Cache) -> None:
    wait_for_hits(cache, "customer", [250], system.describe)
    with writing(system) as connection:
        connection.begin()
        change(connection, 250)
        own: Explanation = cache.get("customer", 250, connection=connection, explain=True)
        assert (own.value["v"], own.outcome) == (1, ReadOutcome.OWN_TRANSACTION)
        assert cache.get("profile", 250, connection=connection)["customer"]["v"] == 1
        assert cache.get_many("customer", [250, 251], connection=connection)[250]["v"] == 1
        assert cache.get("customer", 250)["v"] == 0
        connection.rollback()
        assert cache.get("customer", 250, connection=connection, explain=True).is_hit
        assert cache.get("customer", 250, connection=connection)["v"] == 0


def test_without_autocommit_a_transaction_may_be_open(system: System, cache: Cache) -> None:
    """pymysql does not learn from an answer with rows that a transaction has begun."""
    with writing(system) as connection:
        connection.autocommit(False)
        answer = cache.get("customer", 260, connection=connection, explain=True)
        assert answer.outcome is ReadOutcome.OWN_TRANSACTION


def test_a_row_that_was_inserted_and_returned_is_the_sessions_own(systems: Callable[[Flavor], System]) -> None:
    """MariaDB alone has INSERT … RETURNING."""
    system = systems("mariadb")
    with writing(system) as connection, closing(system.open_cache()) as cache:
        connection.autocommit(False)
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO customers VALUES (2000, 'n', 5) RETURNING id")
        assert cache.get("customer", 2000, connection=connection)["v"] == 5
        connection.rollback()


def test_a_read_only_primary_of_mariadb_shows_its_commits(systems: Callable[[Flavor], System]) -> None:
    """Of Galera alone nothing is concluded from the log of a read-only server."""
    system = systems("mariadb")
    with stopped_replica(system), writing(system) as connection, closing(system.open_cache()) as cache:
        change(connection, 285)
        token = cache.database().commit_token(connection)
        with system.pair.primary.setting("read_only", 1):
            assert cache.get("customer", 285, at_least=token)["v"] == 1


# -- the documentation ---------------------------------------------------------------------------------


def test_the_examples_of_the_page(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    page, _, _ = (
        (Path(__file__).parents[2] / "docs/read-your-writes.md").read_text().partition("\n## Web applications")
    )
    names: dict[str, Any] = {}
    monkeypatch.chdir(system.config_path.parent)
    for example in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(example, names)
    primary = system.pair.primary
    with closing(names["cache"]), stopped_replica(system), ExitStack() as stack:
        connections = [stack.enter_context(writing(system))]
        if primary.flavor == "mysql":
            connections.append(stack.enter_context(writing(system, tracks=True)))
        for number, connection in enumerate(connections):
            token = names["rename"](connection, 270, f"Ada {number}")
            assert names["show"](270, token)["name"] == f"Ada {number}"
            secret = b"sixteen bytes or more"
            carried = names["from_cookie"](names["to_cookie"](token, secret), secret)
            assert names["show"](270, carried)["name"] == f"Ada {number}"
            connection.begin()
            change(connection, 271)
            assert names["show_within"](connection, 271)["v"] == 1
            connection.rollback()
