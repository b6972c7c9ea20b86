"""Everything that people get wrong: each a clear error with the right exit code, or a cache that stays correct.

Each message says what is wrong, in which place, and what to do; it has no traceback and no password. Faults that
the start cannot refuse (a node that is down, foreign bytes, values that are too large) must leave the answers right.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from pymemcache import Client as MemcacheClient

from appclient import Cache, ConfigError, EventToken, FormatError, ReadOutcome, SourceUnavailable
from freshness.algorithm.envelope import FORMAT_VERSION, record_key
from freshness.errors import FlavorMismatch
from freshness.position import empty_position
from integration.configuration import CUSTOMER, write_config
from integration.harness import (
    CACHE,
    CUSTOMERS_TABLE,
    STREAM,
    System,
    call_cli,
    run_cli,
    running_system,
    wait_for_hits,
    wait_for_outcome,
    wait_until,
)
from integration.servers import DatabaseServer, Flavor, Memcached, Pair
from integration.servers.database import make_database
from integration.servers.program import InvalidatorProcess

PASSWORD = "s3cr3t-pass"
USAGE, UPSTREAM, OPERATOR = 2, 3, 4
NO_NODE = "127.0.0.1:1"


def assert_refused(path: Path, exit_code: int, *words: str, verb: str = "run") -> None:
    """The verb ends with that code and one message, which holds the words, a hint, and no secret."""
    result = run_cli(verb, "-c", path) if verb == "run" else call_cli(verb, "-c", path)
    output = result.stderr + result.stdout
    assert result.returncode == exit_code, output
    assert "Traceback" not in output
    assert PASSWORD not in output
    for word in words:
        assert word in output
    assert "invalidator: " in result.stderr
    assert "→" in result.stderr


@pytest.fixture
def primary(pair: Pair) -> DatabaseServer:
    pair.primary.execute(CUSTOMERS_TABLE, database="shop")
    return pair.primary


def config_for(folder: Path, server: DatabaseServer, **options: object) -> Path:
    settings = {"objects": CUSTOMER, **options}
    return write_config(folder, server.flavor, server.url, [NO_NODE], **settings)  # type: ignore[arg-type]


# -- the database --------------------------------------------------------------------------------------


def test_an_unreachable_database(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        url = f"mysql://app:{PASSWORD}@127.0.0.1:{taken.getsockname()[1]}/shop"
        path = write_config(tmp_path, "mariadb", url, [NO_NODE])
        assert_refused(path, UPSTREAM, "127.0.0.1", "refused", "is the server up", verb="check")
        cache = Cache.open(path)
        with pytest.raises(SourceUnavailable, match="is the server up"):
            cache.get("customer", 1)


def test_a_wrong_password(primary: DatabaseServer, tmp_path: Path) -> None:
    url = f"mysql://guarded:{PASSWORD}@127.0.0.1:{primary.port}/shop"
    path = write_config(tmp_path, primary.flavor, url, [NO_NODE])
    assert_refused(path, OPERATOR, "Access denied", "'guarded'", "check user, password", str(primary.port))


def test_an_unknown_database(primary: DatabaseServer, tmp_path: Path) -> None:
    path = write_config(tmp_path, primary.flavor, primary.url.replace("/shop", "/shpo"), [NO_NODE])
    assert_refused(path, OPERATOR, "Unknown database 'shpo'", "correct its name", verb="check")


def test_an_account_without_the_privileges(primary: DatabaseServer, tmp_path: Path) -> None:
    url = f"mysql://reader:reader@127.0.0.1:{primary.port}/shop"
    path = write_config(tmp_path, primary.flavor, url, [NO_NODE])
    assert_refused(path, OPERATOR, "account reader lacks REPLICATION SLAVE", "GRANT REPLICATION SLAVE")


def test_the_wrong_flavor(primary: DatabaseServer, tmp_path: Path) -> None:
    wrong = "mysql" if primary.flavor == "mariadb" else "mariadb"
    path = write_config(tmp_path, wrong, primary.url, [NO_NODE])
    assert_refused(path, OPERATOR, f"configured is flavor {wrong}", f'set flavor = "{primary.flavor}"')


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("binlog_format", "STATEMENT", "F26"),
        ("binlog_format", "MIXED", "F26"),
        ("binlog_row_image", "MINIMAL", "F35"),
        ("binlog_row_metadata", "MINIMAL", "F27"),
    ],
)
def test_a_log_that_does_not_hold_what_is_needed(
    primary: DatabaseServer, tmp_path: Path, name: str, value: str, code: str
) -> None:
    path = config_for(tmp_path, primary)
    remedy = f"SET {'GLOBAL' if primary.flavor == 'mariadb' else 'PERSIST'} {name} = "
    with primary.setting(name, value):
        assert_refused(path, OPERATOR, code, f"{name} is {value}", remedy)
        check = call_cli("check", "-c", path)
        assert check.returncode == OPERATOR
        assert f"error {code}" in check.stdout


def test_gtids_that_do_not_order(tmp_path: Path, mariadb_pair: Pair) -> None:
    server = mariadb_pair.primary
    server.execute("CREATE DATABASE IF NOT EXISTS shop")
    server.execute(f"CREATE OR REPLACE {CUSTOMERS_TABLE.removeprefix('CREATE')}", database="shop")
    with server.setting("gtid_strict_mode", 0):
        assert_refused(
            config_for(tmp_path, server), OPERATOR, "F59", "gtid_strict_mode is OFF", "SET GLOBAL gtid_strict_mode"
        )


@contextmanager
def server_with(flavor: Flavor, options: Sequence[str]) -> Iterator[DatabaseServer]:
    server = make_database(flavor, server_id=9, options=options)
    try:
        server.start()
        server.execute("CREATE DATABASE shop")
        server.execute(CUSTOMERS_TABLE, database="shop")
        yield server
    finally:
        server.stop()


def test_a_server_without_a_log(flavor: Flavor, tmp_path: Path) -> None:
    # gtid_mode=ON would be refused by MySQL itself with its log off.
    options = ["--skip-log-bin"]
    if flavor == "mysql":
        options += ["--gtid-mode=OFF", "--log-replica-updates=0"]
    with server_with(flavor, options) as server:
        assert_refused(config_for(tmp_path, server), OPERATOR, "F25", "log_bin is OFF", "--log-bin")


def test_a_server_without_gtids(tmp_path: Path) -> None:
    with server_with("mysql", ["--gtid-mode=OFF"]) as server:
        assert_refused(config_for(tmp_path, server), OPERATOR, "F29", "gtid_mode is OFF", "set gtid_mode=ON")


# -- the configuration ---------------------------------------------------------------------------------


def test_a_table_without_a_primary_key(primary: DatabaseServer, tmp_path: Path) -> None:
    primary.execute("CREATE TABLE events (what INT)", database="shop")
    path = config_for(tmp_path, primary, objects='[objects.event]\ntable = "events"\n')
    assert_refused(path, USAGE, "shop.events has no primary key", "add one", verb="check")
    with pytest.raises(ConfigError, match="no primary key"):
        Cache.open(path)


def test_an_unknown_table_and_an_unknown_column(primary: DatabaseServer, tmp_path: Path) -> None:
    path = config_for(tmp_path, primary, objects='[objects.customer]\ntable = "Customers"\n')
    assert_refused(path, USAGE, "no table shop.Customers", "spelled customers", verb="check")
    path = config_for(
        tmp_path, primary, objects='[objects.profile]\nkey = "id"\nmembers = { customers = "customer_id" }\n'
    )
    assert_refused(path, USAGE, "no column customer_id", "id, name, v", verb="check")


def test_an_unknown_key_and_a_missing_file(tmp_path: Path) -> None:
    path = write_config(
        tmp_path,
        "mariadb",
        f"mysql://app:{PASSWORD}@127.0.0.1:1/shop",
        [NO_NODE],
        cache={"lease_second": 7, "tombstone_ttl_seconds": 30},
    )
    assert_refused(
        path,
        USAGE,
        "cache.lease_second",
        'did you mean "lease_seconds"',
        "cache.tombstone_ttl_seconds",
        "a setting of a previous release",
        verb="check",
    )
    for verb in ("run", "check", "status"):
        assert_refused(tmp_path / "nowhere.toml", USAGE, "nowhere.toml", "no such file", "--config", verb=verb)


def test_the_http_port_is_taken(primary: DatabaseServer, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        path = config_for(tmp_path, primary, extra=f'[http]\nlisten = "{listen}"\n')
        assert_refused(path, USAGE, f"http.listen = {listen}")


# -- cache nodes ---------------------------------------------------------------------------------------


def test_a_node_that_is_unreachable_at_the_start(pair: Pair, tmp_path: Path) -> None:
    """The invalidator keeps trying; the other node works all the time."""
    pair.primary.execute(CUSTOMERS_TABLE, database="shop")
    with Memcached() as up, Memcached() as down:
        path = write_config(
            tmp_path,
            pair.primary.flavor,
            pair.primary.url,
            [up.address, down.address],
            replicas=[pair.replica.url],
            cache=CACHE,
            stream=STREAM,
        )
        down.kill()
        invalidator = InvalidatorProcess(path)
        invalidator.launch()
        try:
            system = System(pair, [up, down], path, invalidator)
            system.wait_open(1)
            cache = system.open_cache()
            keys = range(40)
            of_up = [key for key in keys if cache.get("customer", key, explain=True).node == up.address]
            wait_for_hits(cache, "customer", of_up, system.describe)
            rest = [key for key in keys if key not in of_up]
            outcomes = {each.outcome for each in cache.get_many("customer", rest, explain=True).values()}
            assert outcomes == {ReadOutcome.NODE_DOWN}
            wait_until(
                lambda: (
                    f"node {down.address} is out: memcached {down.address} cannot be reached" in invalidator.log()
                ),
                "the node is out",
                invalidator.log,
            )
            down.start()
            wait_for_hits(cache, "customer", list(keys), system.describe)
            assert invalidator.terminate() == 0
        finally:
            invalidator.stop()


def test_a_node_without_cas_is_never_used(pair: Pair, tmp_path: Path) -> None:
    pair.primary.execute(CUSTOMERS_TABLE, database="shop")
    with Memcached() as good, Memcached(options=["-C"]) as bad:
        path = write_config(
            tmp_path,
            pair.primary.flavor,
            pair.primary.url,
            [good.address, bad.address],
            replicas=[pair.replica.url],
            cache=CACHE,
            stream=STREAM,
        )
        invalidator = InvalidatorProcess(path)
        invalidator.launch()
        try:
            system = System(pair, [good, bad], path, invalidator)
            system.wait_open(1)
            cache = system.open_cache()
            answers = cache.get_many("customer", range(40), explain=True)
            of_bad = [key for key, each in answers.items() if each.node == bad.address]
            assert {answers[key].outcome for key in of_bad} == {ReadOutcome.NODE_DOWN}
            wait_for_hits(cache, "customer", [k for k in range(40) if k not in of_bad], system.describe)
            wait_until(
                lambda: f"memcached {bad.address} has no CAS" in invalidator.log(), "is refused", invalidator.log
            )
            assert "start it without -C" in invalidator.log()
            assert bad.stats()["cmd_set"] == "0"
        finally:
            invalidator.stop()


# -- keys, values, foreign bytes -----------------------------------------------------------------------

NOTES_TABLE = """CREATE TABLE notes (
  title VARCHAR(400) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, body LONGTEXT)"""
LARGEST = 2_100_000
NOTE = '[objects.note]\ntable = "notes"\n'


@pytest.fixture
def notes(pair: Pair, tmp_path: Path) -> Iterator[System]:
    with running_system(
        pair,
        tmp_path,
        nodes=[Memcached()],
        tables=(CUSTOMERS_TABLE, NOTES_TABLE),
        objects=CUSTOMER + NOTE,
        cache={"value_bytes_max": LARGEST},
    ) as system:
        yield system


def test_long_keys_large_values_and_foreign_bytes(notes: System) -> None:
    cache = notes.open_cache()
    check_long_keys(notes, cache)
    check_large_values(notes, cache)
    check_foreign_entry(notes, cache)
    check_foreign_stripe(notes, cache)
    check_foreign_record(notes, cache)
    check_wrong_keys(cache)
    cache.close()


def check_long_keys(system: System, cache: Cache) -> None:
    titles = ["é" * 300, "é" * 299 + "x", "long " * 60]
    sibling = "é" * 299 + "e"  # shares its slot with the first: they push one another out
    for title in (*titles, sibling):
        system.execute("INSERT INTO notes VALUES (%s, 'old')", title)
    system.settle()
    wait_for_hits(cache, "note", titles, system.describe)
    assert all(len(cache.get("note", title, explain=True).item) <= 240 for title in titles)
    system.execute("UPDATE notes SET body = 'new' WHERE title = %s", titles[0])
    system.settle()
    assert [cache.get("note", title)["body"] for title in titles] == ["new", "old", "old"]
    for _ in range(3):
        assert [cache.get("note", title)["body"] for title in (titles[0], sibling)] == ["new", "old"]
        both = cache.get_many("note", [sibling, titles[0]])
        assert [both[title]["body"] for title in (titles[0], sibling)] == ["new", "old"]


def check_large_values(system: System, cache: Cache) -> None:
    body = "x" * (LARGEST + 1)
    system.execute("INSERT INTO notes VALUES ('large', %s)", body)
    system.settle()
    lives = system.lives()
    wait_for_outcome(cache, "note", "large", [ReadOutcome.TOO_LARGE], system.describe)
    for _ in range(3):
        again = cache.get("note", "large", explain=True)
        assert (again.outcome, again.value["body"]) == (ReadOutcome.TOO_LARGE, body)
    system.execute("UPDATE notes SET body = 'small' WHERE title = 'large'")
    system.settle()
    wait_for_hits(cache, "note", ["large"], system.describe)
    assert cache.get("note", "large")["body"] == "small"
    # One that has become too large leaves nothing old behind.
    system.execute("UPDATE notes SET body = %s WHERE title = 'large'", body)
    system.settle()
    assert cache.get("note", "large", explain=True).outcome is ReadOutcome.TOO_LARGE
    assert cache.get("note", "large")["body"] == body
    assert system.lives() == lives, "a refused value is no loss of memory"


def store(system: System, key: bytes, data: bytes) -> None:
    """As another program would that shares the cache."""
    [node] = system.nodes
    with closing(MemcacheClient(node.address)) as client:
        assert client.set(key, data, noreply=False)


def check_foreign_entry(system: System, cache: Cache) -> None:
    system.execute("INSERT INTO customers VALUES (1, 'n', 0), (2, 'n', 0), (3, 'n', 0)")
    system.settle()
    subject = system.subject("customer", 1)
    wait_for_hits(cache, "customer", [1], system.describe)
    entry = system.find_item("customer", 1)
    assert entry is not None
    # An application of a newer release beside this one, and of an older one, in a format of its own
    others = [
        bytes((entry.value[0], version, *entry.value[2:])) for version in (FORMAT_VERSION + 1, FORMAT_VERSION - 1)
    ]
    for data in (b"not ours", b"\x01", b"x" * 5000, *others):
        store(system, subject.item, data)
        for _ in range(2):
            read = cache.get("customer", 1, explain=True)
            assert (read.outcome, read.value["v"]) == (ReadOutcome.FOREIGN, 0)
        item = system.find_item("customer", 1)
        assert item is not None
        assert item.value == data, "a reader overwrites nothing that is not ours"
    system.execute("UPDATE customers SET v = 1 WHERE id = 1")
    system.settle()
    wait_for_hits(cache, "customer", [1], system.describe)
    assert cache.get("customer", 1)["v"] == 1


def check_foreign_stripe(system: System, cache: Cache) -> None:
    """Nothing is stored until the invalidator has put a stripe in its place, which a reader asks for."""
    for value, data in enumerate((b"not ours", b"\x01" * 200), start=1):
        store(system, system.stripe_of("customer", 2), data)
        system.execute("UPDATE customers SET v = %s WHERE id = 2", value)
        system.wait_covered()
        assert cache.get("customer", 2)["v"] in (value - 1, value)  # as far as the replica is
        system.assert_none_stale(cache, "customer", [2])


def check_foreign_record(system: System, cache: Cache) -> None:
    wait_for_hits(cache, "customer", [1], system.describe)
    for data in (b"not ours", b"\x01" * 200):
        store(system, record_key("shop", "shop/-"), data)
        system.execute("UPDATE customers SET v = v + 1 WHERE id = 1")
        system.assert_none_stale(cache, "customer", [1, 3])
    assert cache.get("customer", 1)["v"] == 3


def check_wrong_keys(cache: Cache) -> None:
    for key, words in (
        (None, "NULL"),
        (1.5, "float"),
        ("one", "str"),
        ((1, 2), "2 values"),
        (1 << 70, "at most 64 bits"),
    ):
        with pytest.raises(FormatError, match=words):
            cache.get("customer", key)
    with pytest.raises(ConfigError, match=r"unknown object 'custmer'.*customer, note"):
        cache.get("custmer", 1)


def test_a_token_of_another_flavor(pair: Pair, tmp_path: Path) -> None:
    pair.primary.execute(CUSTOMERS_TABLE, database="shop")
    cache = Cache.open(config_for(tmp_path, pair.primary))
    other = "mysql" if pair.primary.flavor == "mariadb" else "mariadb"
    token = EventToken("shop/-", "-", 1, 0, empty_position(other))
    with pytest.raises(FlavorMismatch, match=f"a token of {other}.*which has those of {pair.primary.flavor}"):
        cache.database().query("SELECT 1", compare_event_token=token)
    wait_until(lambda: cache.database().query("SELECT 1 AS one").rows == [{"one": 1}], "the connection still works")
    cache.close()
