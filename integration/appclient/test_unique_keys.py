"""Rows by unique keys other than the primary key, on real servers: keys that change, move between rows and are NULL,
look-ups by text under a collation that ignores case and accents, and a race with a lagging replica."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pymysql
import pytest

from appclient import Cache, Explanation, ReadOutcome
from freshness.errors import ConfigError, FormatError
from integration.configuration import write_config
from integration.harness import System, call_cli, running_system, wait_for_hits
from integration.servers import Pair

USERS: Final = """CREATE TABLE users (id BIGINT PRIMARY KEY, tenant INT, slug VARCHAR(40) COLLATE utf8mb4_bin,
  email VARCHAR(80) COLLATE utf8mb4_unicode_ci, handle VARCHAR(40) COLLATE utf8mb4_bin NULL, note VARCHAR(9), v INT,
  UNIQUE (tenant, slug), UNIQUE by_email (email), UNIQUE (handle), UNIQUE by_note (note(4)))
  CHARACTER SET utf8mb4"""
PEOPLE: Final = """CREATE TABLE people (id INT PRIMARY KEY, email VARCHAR(80), v INT,
  lowered VARCHAR(80) COLLATE utf8mb4_bin GENERATED ALWAYS AS (LOWER(email)) VIRTUAL, UNIQUE (lowered))"""
OBJECTS: Final = """[objects.user]
table = "users"
[objects.user_by_handle]
table = "users"
key = "handle"
[objects.user_by_slug]
table = "users"
key = ["slug", "tenant"]
[objects.user_by_email]
table = "users"
key = "email"
[objects.person_by_lowered]
table = "people"
key = "lowered"
"""


@pytest.fixture
def system(pair: Pair, tmp_path: Path) -> Iterator[System]:
    with running_system(pair, tmp_path, tables=(USERS, PEOPLE), objects=OBJECTS) as started:
        yield started


@pytest.fixture
def cache(system: System) -> Iterator[Cache]:
    opened = system.open_cache()
    yield opened
    opened.close()


def change(system: System, *statements: str) -> None:
    """One transaction on the primary; every node has acknowledged it, and the replica has it."""
    with system.pair.primary.connect("shop") as connection, connection.cursor() as cursor:
        for statement in ("BEGIN", *statements, "COMMIT"):
            cursor.execute(statement)
    system.settle()


def ids(cache: Cache, name: str, keys: Sequence[Any]) -> list[int | None]:
    """The ids of the rows, read until each is a hit."""
    found = wait_for_hits(cache, name, keys)
    return [each.value and each.value["id"] for each in found.values()]


def outcomes(cache: Cache, name: str, keys: Sequence[Any]) -> list[str]:
    return [each.outcome.name for each in cache.get_many(name, keys, explain=True).values()]


def test_a_row_is_found_by_each_of_its_unique_keys(system: System, cache: Cache) -> None:
    """A change of the row ends the entries of all its keys, and of no other row's."""
    change(
        system,
        "INSERT INTO users (id, tenant, slug, email, handle, v) VALUES (1, 7, 'a', 'Ann@x.org', 'ann', 1),"
        " (2, 7, 'b', 'bob@x.org', 'bob', 1), (3, 8, 'a', NULL, NULL, 1)",
    )
    keys: dict[str, list[Any]] = {
        "user": [1, 2],
        "user_by_handle": ["ann", "bob"],
        "user_by_slug": [("a", 7), ("b", 7)],
        "user_by_email": ["ann@X.org", "bob@x.org"],
    }
    for name, of in keys.items():
        assert ids(cache, name, of) == [1, 2], name
    assert cache.get("user_by_slug", {"tenant": 8, "slug": "a"})["id"] == 3
    change(system, "UPDATE users SET v = 2 WHERE id = 1")
    for name, of in keys.items():
        assert outcomes(cache, name, of) == ["FILLED", "HIT"], name
        assert cache.get(name, of[0])["v"] == 2, name
    change(system, "DELETE FROM users WHERE id = 1")
    for name, of in keys.items():
        assert ids(cache, name, of[1:]) == [2]
        assert cache.get(name, of[0]) is None, name
    answer = call_cli("inspect", "user_by_handle", "bob", "-c", system.config_path, "--json").stdout
    assert '"equals_primary": true' in answer
    assert call_cli("invalidate", "user_by_slug", "b", "7", "-c", system.config_path).returncode == 0
    assert outcomes(cache, "user_by_slug", [("b", 7)]) != ["HIT"]


@pytest.mark.parametrize("change_of_ann", ["UPDATE people SET v = 2 WHERE id = 1", "DELETE FROM people WHERE id = 1"])
def test_a_generated_key(system: System, cache: Cache, change_of_ann: str) -> None:
    """MariaDB 11.8 leaves generated columns out of updates and deletes, so each raises the whole table there."""
    change(system, "INSERT INTO people (id, email, v) VALUES (1, 'Ann@x.org', 1), (2, 'bob@x.org', 1)")
    name, keys = "person_by_lowered", ["ann@x.org", "bob@x.org"]
    assert ids(cache, name, keys) == [1, 2]
    change(system, change_of_ann)
    primary = system.pair.primary
    is_logged = primary.flavor == "mysql" or int(primary.version.partition(".")[0]) < 11
    assert outcomes(cache, name, keys) == ["FILLED", "HIT" if is_logged else "FILLED"]
    assert ("column lowered is not in the binary log" in system.invalidator.log()) != is_logged
    now = cache.get(name, keys[0])
    assert now is None if change_of_ann.startswith("DELETE") else now["v"] == 2


SWAP: Final = ((1, "tmp"), (2, "a"), (1, "b"))


def test_a_key_that_moves_from_one_row_to_another(system: System, cache: Cache) -> None:
    """Both images name their key, even if a row holds a key only within a transaction."""
    change(
        system,
        "INSERT INTO users (id, handle, tenant, slug) VALUES (1, 'a', 7, 'a'), (2, 'b', 7, 'b'), (3, 'c', 8, 'a')",
    )
    handles, slugs = ["a", "b", "c", "tmp"], [("a", 7), ("b", 7), ("a", 8), ("b", 8)]
    steps: list[tuple[tuple[str, ...], list[int | None], list[int | None]]] = [
        ((), [1, 2, 3, None], [1, 2, 3, None]),
        # Two rows exchange their handles, by way of a third one.
        (
            tuple(f"UPDATE users SET handle = '{to}' WHERE id = {row}" for row, to in SWAP),
            [2, 1, 3, None],
            [1, 2, 3, None],
        ),
        (("UPDATE users SET handle = NULL WHERE id = 2", "UPDATE users SET handle = 'a' WHERE id = 3"),
         [3, 1, None, None], [1, 2, 3, None]),
        (("UPDATE users SET tenant = 8 WHERE slug = 'b'",), [3, 1, None, None], [1, None, 3, 2]),
        (("UPDATE users SET tenant = NULL WHERE id IN (2, 3)",), [3, 1, None, None], [1, None, None, None]),
        # The row that has the key goes, and this one takes its place.
        (("REPLACE INTO users (id, handle, tenant, slug) VALUES (9, 'a', 7, 'a')",),
         [9, None, None, None], [9, None, None, None]),
        (("DELETE FROM users WHERE id = 9", "INSERT INTO users (id, handle) VALUES (1, 'tmp'), (10, 'a')"),
         [10, None, None, 1], [None, None, None, None]),
    ]  # fmt: skip
    for statements, by_handle, by_slug in steps:
        change(system, *statements)
        assert ids(cache, "user_by_handle", handles) == by_handle, statements
        assert ids(cache, "user_by_slug", slugs) == by_slug, statements
        assert not system.find_stale("user_by_handle", handles)[1]


def test_null_is_no_key(system: System, cache: Cache) -> None:
    change(system, "INSERT INTO users (id) VALUES (1), (2)")
    for name, key in (("user_by_handle", None), ("user_by_slug", ("a", None)), ("user_by_email", None)):
        with pytest.raises(FormatError, match="is NULL in a key"):
            cache.get(name, key)


SPELLINGS: Final = ("bob", "Bob", "BOB ", "bób", "BÓB", "bo\u0301b", "strasse", "straße", "Strasse", "STRASSE")


def quoted(text: str | None) -> str:
    return "NULL" if text is None else f"'{text}'"


def test_text_that_the_collation_calls_equal_never_finds_a_previous_row(system: System, cache: Cache) -> None:
    """Rows take, leave and exchange addresses that are equal for the database in several spellings. After each change
    every spelling is asked for, so what earlier reads have stored is looked at."""
    chance = random.Random(f"{system.pair.primary.flavor} 1")
    hits = 0
    for number in range(40):
        row, (first, second) = chance.randrange(1, 5), chance.choices([*SPELLINGS, None], k=2)
        statements = [f"DELETE FROM users WHERE id = {row}"]
        if chance.random() < 0.8:
            statements = [f"REPLACE INTO users (id, email, v) VALUES ({row}, {quoted(first)}, {number})"]
        if chance.random() < 0.5:  # the same address in another spelling, or another one
            statements.append(f"UPDATE users SET email = {quoted(second)}, v = -{number} WHERE id = {row}")
        with suppress(pymysql.err.IntegrityError):
            change(system, *statements)
        truth = {
            spelling: system.pair.replica.execute(
                "SELECT id, email, v FROM users WHERE email = %s", spelling, database="shop"
            )
            for spelling in SPELLINGS
        }
        for _ in range(2):
            for spelling, rows in truth.items():
                each: Explanation = cache.get("user_by_email", spelling, explain=True)
                found = [] if each.value is None else [tuple(each.value[name] for name in ("id", "email", "v"))]
                assert found == rows, (number, statements, spelling, each)
                hits += each.is_hit
            for spelling, row_found in cache.get_many("user_by_email", SPELLINGS).items():
                assert bool(row_found) == bool(truth[spelling]), (number, spelling)
    assert hits > 40


def test_race_of_a_key_that_goes_round_and_readers(system: System, cache: Cache) -> None:
    """After each acknowledgement every hit and every fill has the change (I1): the handle is with the row that took
    it last, or with a later one."""
    change(system, "INSERT INTO users (id, handle, v) VALUES (0, 'star', 0), (1, NULL, 0), (2, NULL, 0)")
    acknowledged, writing = [0], [0]
    stopping = threading.Event()
    seen: set[ReadOutcome] = set()
    failures: list[BaseException] = []

    def work() -> None:
        own = system.open_cache()
        try:
            while not stopping.is_set():
                least = acknowledged[0]
                each: Explanation = own.get("user_by_handle", "star", explain=True)
                seen.add(each.outcome)
                if each.outcome in (ReadOutcome.HIT, ReadOutcome.FILLED):
                    number = each.value["v"]
                    assert least <= number <= writing[0], f"{least} is acknowledged: {each}"
                    assert each.value["id"] == number % 3, each
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)
        finally:
            own.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, 31):
            writing[0] = number
            with system.pair.primary.connect("shop") as connection, connection.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("UPDATE users SET handle = NULL WHERE handle = 'star'")
                cursor.execute("UPDATE users SET handle = 'star', v = %s WHERE id = %s", (number, number % 3))
                cursor.execute("COMMIT")
            system.wait_covered()
            acknowledged[0] = number
            if number % 5 == 0:
                wait_for_hits(cache, "user_by_handle", ["star"], system.describe)
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    assert {ReadOutcome.HIT, ReadOutcome.FILLED} <= seen
    system.assert_none_stale(cache, "user_by_handle", ["star"])


def test_an_index_that_is_dropped_leaves_nothing_to_store(system: System, cache: Cache) -> None:
    """Two rows of one key: an answer is given, and none is stored."""
    change(system, "INSERT INTO users (id, handle) VALUES (1, 'ann')")
    assert ids(cache, "user_by_handle", ["ann"]) == [1]
    change(system, "ALTER TABLE users DROP INDEX handle", "INSERT INTO users (id, handle) VALUES (2, 'ann')")
    for _ in range(3):
        outcome = cache.get("user_by_handle", "ann", explain=True).outcome
        assert not outcome.is_hit
        assert outcome is not ReadOutcome.FILLED
    change(system, "DELETE FROM users WHERE id = 1", "ALTER TABLE users ADD UNIQUE (handle)")
    assert ids(cache, "user_by_handle", ["ann"]) == [2]


def test_a_view_that_takes_the_place_of_a_table_is_not_stored(system: System, cache: Cache) -> None:
    """The log names the table behind it alone. The rows are stored again once a table has the name."""
    change(system, "INSERT INTO users (id, v) VALUES (1, 1)")
    assert ids(cache, "user", [1]) == [1]
    change(system, "RENAME TABLE users TO people_of_old", "CREATE VIEW users AS SELECT * FROM people_of_old")
    for number in (2, 3):
        change(system, f"UPDATE users SET v = {number}")
        found = [cache.get("user", 1, explain=True) for _ in range(3)]
        assert [(each.value["v"], each.is_hit) for each in found] == [(number, False)] * 3
    change(system, "DROP VIEW users", "RENAME TABLE people_of_old TO users")
    assert ids(cache, "user", [1]) == [1]


ALTERED: Final = (
    ("words", "VARCHAR(9) COLLATE utf8mb4_general_ci", "VARCHAR(9) COLLATE utf8mb4_bin", ("A", "a")),
    ("codes", "BINARY(4)", "VARBINARY(8)", (b"ab\0\0", b"ab")),
    ("numbers", "VARCHAR(9) COLLATE utf8mb4_bin", "INT", ("5", "6")),
    ("texts", "INT", "VARCHAR(20) COLLATE utf8mb4_bin", ("5", "a")),
)
"""Tables, the column of their key before an ALTER and after it, and the keys of two rows; the second one is new."""


def test_a_key_column_that_is_altered_is_read_as_it_is_now(pair: Pair, tmp_path: Path) -> None:
    """By a process that was there before: each key finds its row, and no change leaves an entry behind. Two keys that
    were equal share an item, so each is read until it is a hit."""
    made = [f"CREATE TABLE {table} (k {kind} PRIMARY KEY, v INT)" for table, kind, _, _ in ALTERED]
    objects = "".join(f'[objects.{table}]\ntable = "{table}"\n' for table, _, _, _ in ALTERED)
    with running_system(pair, tmp_path, tables=made, objects=objects) as system:
        cache = system.open_cache()
        with pair.primary.connect("shop") as connection, connection.cursor() as cursor:
            for table, _, _, (key, _) in ALTERED:
                cursor.execute(f"INSERT INTO {table} VALUES (%s, 1)", (key,))
            system.settle()
            for table, _, _, (key, _) in ALTERED:
                assert hit(cache, table, key)["v"] == 1
            for table, _, kind, (_, key) in ALTERED:
                cursor.execute(f"ALTER TABLE {table} MODIFY k {kind}")
                cursor.execute(f"INSERT INTO {table} VALUES (%s, 1)", (key,))
            for number in (2, 3):
                system.settle()
                for table, _, _, keys in ALTERED:
                    wanted = [(int(key) if table == "numbers" else key, number - 1) for key in keys]
                    assert [(row["k"], row["v"]) for row in (hit(cache, table, key) for key in keys)] == wanted
                    cursor.execute(f"UPDATE {table} SET v = %s", (number,))
        cache.close()


def hit(cache: Cache, name: str, key: Any) -> Any:
    return wait_for_hits(cache, name, [key])[key].value


@pytest.mark.parametrize(
    ("key", "says", "hint"),
    [
        ('"tenant"', "several rows of shop.users can have the same tenant", "by_email (email)"),
        ('["tenant", "email_"]', "shop.users has no column email_", "it has"),
        ('"note"', "several rows of shop.users can have the same note", "by_note (note(4))"),
        ('"v"', "several rows of shop.users can have the same v", "PRIMARY (id)"),
    ],
)
def test_a_key_that_may_find_several_rows_is_refused(
    pair: Pair, tmp_path: Path, key: str, says: str, hint: str
) -> None:
    pair.primary.execute(USERS, database="shop")
    objects = f'[objects.found]\ntable = "users"\nkey = {key}\n'
    path = write_config(tmp_path, pair.primary.flavor, pair.primary.url, ["127.0.0.1:1"], objects=objects)
    with pytest.raises(ConfigError) as refused:
        Cache.open(path)
    assert says in str(refused.value)
    assert hint in refused.value.hint


def test_a_key_that_select_does_not_show_is_refused(pair: Pair, tmp_path: Path) -> None:
    pair.primary.execute(
        "CREATE TABLE users (id INT PRIMARY KEY, handle VARBINARY(9) INVISIBLE, UNIQUE (handle))", database="shop"
    )
    objects = '[objects.found]\ntable = "users"\nkey = "handle"\n'
    path = write_config(tmp_path, pair.primary.flavor, pair.primary.url, ["127.0.0.1:1"], objects=objects)
    with pytest.raises(ConfigError, match=r"column shop\.users\.handle is invisible"):
        Cache.open(path)


def test_an_index_over_an_expression_is_no_key(mysql_pair: Pair, tmp_path: Path) -> None:
    mysql_pair.primary.execute("DROP DATABASE IF EXISTS shop")
    mysql_pair.primary.execute("CREATE DATABASE shop")
    mysql_pair.primary.execute(
        "CREATE TABLE users (id INT PRIMARY KEY, handle VARBINARY(9), UNIQUE folded ((LEFT(handle, 2))))",
        database="shop",
    )
    objects = '[objects.found]\ntable = "users"\nkey = "handle"\n'
    path = write_config(tmp_path, "mysql", mysql_pair.primary.url, ["127.0.0.1:1"], objects=objects)
    with pytest.raises(ConfigError, match="can have the same handle") as refused:
        Cache.open(path)
    assert "folded (an expression)" in refused.value.hint
