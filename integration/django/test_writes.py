"""A session reads its own commits, a transaction its own writes, and nothing uncommitted is stored; on real servers
whose replica shows the past."""

from __future__ import annotations

import asyncio
import unittest
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pymysql
import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import OperationalError, ProgrammingError, connection, connections, transaction
from django.db.backends.signals import connection_created
from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory, TestCase
from django.test.utils import CaptureQueriesContext

from appclient import Cache, Explanation, ReadOutcome, SourceUnavailable
from appclient.django import get_cache, wrote
from appclient.django.middleware import ReadYourWritesMiddleware
from appclient.django.session import get_session
from integration.harness import System

pytestmark = pytest.mark.usefixtures("stopped_replica")


@pytest.fixture
def key(system: System) -> int:
    """A thing with ``v`` 0, which the replica has, and which is a hit."""
    from integration.django.shop.models import Thing

    system.pair.replica.start_replication()
    made: int = Thing.objects.create().pk
    system.settle()
    system.pair.replica.stop_replication()
    assert Thing.objects.get(pk=made).v == 0
    assert Thing.objects.get(pk=made).v == 0
    return made


def things() -> Any:
    from integration.django.shop.models import Thing

    return Thing.objects


def save(key: int) -> None:
    found = things().using("default").get(pk=key)
    found.v = 1
    found.save()


def update(key: int) -> None:
    things().filter(pk=key).update(v=F("v") + 1)


def in_block(key: int) -> None:
    with transaction.atomic():
        update(key)


def in_savepoint(key: int) -> None:
    with transaction.atomic():
        things().get(pk=key)
        with transaction.atomic():
            update(key)


def in_raw_sql(key: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("/* by hand */ UPDATE shop_thing SET v = 1 WHERE id = %s", [key])


def in_raw_transaction(key: int, *begin: str) -> None:
    with connection.cursor() as cursor:
        for each in begin or ("START TRANSACTION",):
            cursor.execute(each)
        cursor.execute("UPDATE shop_thing SET v = 1 WHERE id = %s", [key])
        assert things().get(pk=key).v == 1
        cursor.execute("COMMIT")


def in_raw_transaction_with_a_comment(key: int) -> None:
    in_raw_transaction(key, "/* why */ START TRANSACTION")


def in_raw_transaction_that_follows_another(key: int) -> None:
    in_raw_transaction(key, "START TRANSACTION", "COMMIT AND CHAIN")


def without_autocommit_by_hand(key: int) -> None:
    in_raw_transaction(key, "SET autocommit = 0")
    connection.close()


def in_bulk(key: int) -> None:
    found = things().using("default").get(pk=key)
    found.v = 1
    things().bulk_update([found], ["v"])


def unseen(key: int) -> None:
    with connection.connection.cursor() as cursor:
        cursor.execute("UPDATE shop_thing SET v = 1 WHERE id = %s", [key])
    wrote()


def then_disconnected(key: int) -> None:
    update(key)
    connection.close()


def then_reconnected(key: int) -> None:
    update(key)
    connection.close()
    connection.ensure_connection()


def then_killed(key: int) -> None:
    update(key)
    with pymysql.connect(
        host="127.0.0.1", port=connection.settings_dict["PORT"], user="app", password="app"
    ) as other:
        other.query(f"KILL {connection.connection.thread_id()}")


@pytest.mark.parametrize(
    "write",
    [
        save,
        update,
        in_block,
        transaction.atomic(update),
        in_savepoint,
        in_raw_sql,
        in_raw_transaction,
        in_raw_transaction_with_a_comment,
        in_raw_transaction_that_follows_another,
        without_autocommit_by_hand,
        in_bulk,
        unseen,
        then_disconnected,
        then_reconnected,
        then_killed,
    ],
    ids=lambda write: write.__name__,
)
def test_after_its_commit_a_session_reads_it(
    system: System, key: int, write: Callable[[int], None], reads: list[Explanation]
) -> None:
    before = get_session().find_token()
    write(key)
    assert things().get(pk=key).v == 1
    assert get_session().find_token() != before, "the session asks for its commit, whatever the nodes know"
    assert things().in_bulk([key, key + 10**6])[key].v == 1
    assert reads[-1].outcome is not ReadOutcome.OWN_TRANSACTION
    assert things().using("replica").get(pk=key).v == 0, "the replica was to show the past"


def test_where_the_types_of_columns_are_unknown_a_session_reads_its_commit_from_the_primary(
    system: System, key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise SourceUnavailable("no server shows the last change of the table")

    update(key)
    monkeypatch.setattr(Cache, "column_types", fail)
    assert things().get(pk=key).v == 1
    assert things().in_bulk([key])[key].v == 1
    assert things().using("replica").get(pk=key).v == 0, "the replica was to show the past"


def test_a_transaction_reads_what_it_has_written(system: System, key: int, reads: list[Explanation]) -> None:
    with transaction.atomic():
        assert things().get(pk=key).v == 0
        assert len(reads) == 1  # nothing is written yet: from the cache
        update(key)
        assert things().get(pk=key).v == 1
        assert things().in_bulk([key])[key].v == 1
        with transaction.atomic():
            update(key)
            assert things().get(pk=key).v == 2
    assert len(reads) == 1
    assert things().get(pk=key).v == 2


def fail_after_the_write(key: int, expected: int) -> None:
    update(key)
    assert things().get(pk=key).v == expected
    raise RuntimeError("an error after the write")


def test_what_is_rolled_back_is_read_by_nobody(system: System, key: int, reads: list[Explanation]) -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        fail_after_the_write(key, 1)
    assert things().get(pk=key).v == 0
    with transaction.atomic():
        update(key)
        with pytest.raises(RuntimeError), transaction.atomic():
            fail_after_the_write(key, 2)
        assert things().get(pk=key).v == 1
        transaction.set_rollback(True)
    assert things().get(pk=key).v == 0
    assert system.find_stale("thing", [key])[1] == []


def test_without_autocommit_the_cache_stands_aside(system: System, key: int, reads: list[Explanation]) -> None:
    transaction.set_autocommit(False)
    try:
        update(key)
        assert things().get(pk=key).v == 1
        with transaction.atomic():
            assert things().get(pk=key).v == 1
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    assert not reads
    assert things().get(pk=key).v == 0


def test_a_lock_in_a_transaction_is_read_on_its_connection(
    system: System, key: int, reads: list[Explanation]
) -> None:
    with transaction.atomic():
        things().using("default").select_for_update().get(pk=key)
        things().get(pk=key)
    assert not reads


@pytest.mark.parametrize(
    "statement", ["USE mysql", "SET time_zone = '+05:00'", "SELECT GET_LOCK('things', 0)", "select_db", "raw"]
)
def test_a_connection_whose_session_was_changed_is_not_served(
    system: System, key: int, reads: list[Explanation], statement: str
) -> None:
    connection = connections["replica"]  # that of the router, for reads
    connection.ensure_connection()
    try:
        if statement == "select_db":
            connection.connection.select_db("mysql")
        elif statement == "raw":
            with connection.connection.cursor() as cursor:
                cursor.execute("SET time_zone = '+05:00'")
        else:
            with connection.cursor() as cursor:
                cursor.execute(statement)
        if statement in ("USE mysql", "select_db"):
            with pytest.raises(ProgrammingError, match="doesn't exist"):
                things().using("replica").get(pk=key)
            with pytest.raises(ProgrammingError, match="doesn't exist"):
                things().get(pk=key)
        else:
            things().get(pk=key)
        assert not reads
    finally:
        connection.close()
    things().get(pk=key)
    assert [each.outcome for each in reads] == [ReadOutcome.HIT]


@pytest.mark.parametrize("where", ["database", "init_command", "receiver"])
def test_a_database_that_is_chosen_as_a_connection_begins_is_read(
    system: System, key: int, reads: list[Explanation], where: str
) -> None:
    """Also by the first read, which has not connected yet."""
    connection = connections["replica"]

    def choose(connection: Any, **_: Any) -> None:
        if connection.alias == "replica":
            connection.connection.select_db("mysql")

    options = {"database": {"database": "mysql"}, "init_command": {"init_command": "USE mysql"}}
    with ExitStack() as stack:
        connection.close()
        stack.callback(connection.close)
        stack.enter_context(patch.dict(connection.settings_dict["OPTIONS"], options.get(where, {})))
        if where == "receiver":
            connection_created.connect(choose)
            stack.callback(connection_created.disconnect, choose)
        for _ in range(2):
            with pytest.raises((OperationalError, ProgrammingError), match="shop_thing"):
                things().get(pk=key)
        assert not reads


@pytest.mark.parametrize("where", ["options", "server", "statement"])
def test_a_transaction_that_locks_what_it_reads_is_not_served(
    system: System, key: int, reads: list[Explanation], where: str
) -> None:
    """Two of them would both hit, and one of their updates would be lost."""
    connection, replica = connections["replica"], system.pair.replica
    variable = "transaction_isolation" if replica.flavor == "mysql" else "tx_isolation"
    connection.ensure_connection()
    before = connection.isolation_level
    with ExitStack() as stack:
        if where != "statement":
            connection.close()
            stack.callback(connection.close)
        if where == "server":
            stack.enter_context(replica.setting(variable, "'SERIALIZABLE'"))
        options = {"options": {"isolation_level": "serializable"}, "server": {"isolation_level": None}}
        stack.enter_context(patch.dict(connection.settings_dict["OPTIONS"], options.get(where, {})))
        if where == "statement":
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            stack.callback(connection.close)
        with transaction.atomic(using="replica"):
            things().get(pk=key)
        assert not reads
    connection.isolation_level = before


def test_no_query_of_the_application_is_added(system: System, key: int) -> None:
    with CaptureQueriesContext(connection) as queries:
        update(key)
        things().get(pk=key)
        things().get(pk=key)
    assert len(queries) == 1


def test_a_test_case_neither_reads_nor_fills(system: System, key: int, reads: list[Explanation]) -> None:
    class Case(TestCase):
        databases = frozenset(("default", "replica"))

        @classmethod
        def setUpTestData(cls) -> None:
            cls.made = things().create(v=7)

        def test_reads(self) -> None:
            assert things().get(pk=self.made.pk).v == 7
            assert things().get(pk=key).v == 0
            update(key)
            assert things().get(pk=key).v == 1

        def test_hooks(self) -> None:
            with self.captureOnCommitCallbacks() as hooks, transaction.atomic():
                update(key)
            assert hooks == []
            assert things().get(pk=key).v == 1

        def test_reads_alone(self) -> None:
            assert things().get(pk=key).v == 0

    class ReadingCase(TestCase):
        databases = frozenset(("default", "replica"))

        def test_reads_where_nothing_was_written(self) -> None:
            assert things().get(pk=key).v == 0

    result = unittest.TestResult()
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    unittest.TestSuite((load(Case), load(ReadingCase))).run(result)
    assert (result.testsRun, result.errors, result.failures) == (4, [], [])
    assert not reads
    assert things().get(pk=key).v == 0


# -- from one request to the next ------------------------------------------------------------------------


def test_the_next_request_reads_the_commits_of_the_last(system: System, key: int) -> None:
    client, other = Client(), Client()
    assert client.get(f"/things/{key}").cookies == {}
    answer = client.post(f"/things/{key}")
    assert (answer.json()["v"], list(answer.cookies)) == (1, ["freshness"])
    assert client.get(f"/things/{key}").json() == {"v": 1}
    assert client.get(f"/things/{key}").cookies == {}
    assert other.get(f"/things/{key}").json()["v"] in (0, 1)


def test_a_request_that_only_writes_sets_the_cookie(system: System, key: int) -> None:
    """As one that redirects. A page that was read by the cookie is for its session alone."""

    def view(request: HttpRequest) -> HttpResponse:
        if request.method == "POST":
            update(key)
        return HttpResponse(str(things().get(pk=key).v) if request.method == "GET" else "")

    factory, serve = RequestFactory(), ReadYourWritesMiddleware(view)
    written: Any = serve(factory.post("/"))
    assert list(written.cookies) == ["freshness"]
    factory.cookies = written.cookies
    shown: Any = serve(factory.get("/"))
    assert (shown.content, shown.headers["Vary"]) == (b"1", "Cookie")
    assert "Vary" not in serve(factory.head("/")).headers  # type: ignore[union-attr]


def test_a_view_that_fails_after_its_commit_sets_the_cookie(system: System, key: int) -> None:
    client = Client(raise_request_exception=False)
    answer = client.post(f"/things/{key}", {"fail": "yes"})
    assert (answer.status_code, list(answer.cookies)) == (500, ["freshness"])
    assert client.get(f"/things/{key}").json() == {"v": 1}


@pytest.mark.parametrize("spoil", ["forged", "", "a.b.c", "\x00"])
def test_a_spoiled_cookie_counts_as_none(system: System, key: int, spoil: str) -> None:
    client = Client()
    client.post(f"/things/{key}")
    client.cookies["freshness"] = spoil if spoil != "forged" else client.cookies["freshness"].value[:-3]
    answer = client.get(f"/things/{key}")
    assert answer.status_code == 200


def test_views_of_an_event_loop_read_their_commits(system: System, key: int) -> None:
    async def run() -> list[Any]:
        client = AsyncClient(raise_request_exception=False)
        answers = [
            await client.post(f"/async/{key}"),
            await client.get(f"/async/{key}"),
            await client.post(f"/async/{key}", {"fail": "yes"}),
            await client.get(f"/async/{key}"),
        ]
        await sync_to_async(connections.close_all)()
        return [(each.status_code, each.json() if each.status_code == 200 else None) for each in answers]

    async def run_in_a_thread_of_its_own() -> list[Any]:
        async with ThreadSensitiveContext():
            return await run()

    assert asyncio.run(run_in_a_thread_of_its_own()) == [
        (200, {"v": 1}),
        (200, {"v": 1}),
        (500, None),
        (200, {"v": 2}),
    ]


def test_no_entry_is_of_the_past_in_the_end(system: System, key: int) -> None:
    client = Client()
    for _ in range(20):
        client.post(f"/things/{key}")
        client.get(f"/things/{key}")
    system.pair.replica.start_replication()
    system.assert_none_stale(get_cache(), "thing", [key])
    connections.close_all()
