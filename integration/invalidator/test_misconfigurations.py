"""`invalidator check` finds each way to set a system up wrongly, on real servers, and nothing in a correct system.

Each case makes one mistake in a correct system and expects exactly the rules that find it. If a finding has
statements, they are run on the server that it names, and the finding must be gone. The list is complete:
`test_each_rule_has_a_case`.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pymysql
import pytest
from redis import Redis as RedisClient

from freshness.algorithm.envelope import NodeRecord, record_key
from freshness.algorithm.request import Add, Delete
from freshness.config.config import load_config
from freshness.database.heartbeat import HeartbeatWriter
from freshness.keys.placement import Placement
from freshness.nodes.memcached import MemcachedNode
from freshness.nodes.redis import RIGHTS
from freshness.position import empty_position
from freshness.stream.heartbeat import HEARTBEAT_TABLE
from integration.configuration import CUSTOMER, PROFILE, write_config
from integration.harness import call_cli, wait_until
from integration.provision import CHECKOUT
from integration.servers import DatabaseServer, Flavor, Memcached, Pair, database_pair
from integration.servers.redis import Redis
from invalidator.process.checkup import Checkup
from invalidator.rules.finding import CheckFinding
from invalidator.rules.rule import Rule

BOTH: Final[tuple[Flavor, ...]] = ("mariadb", "mysql")
TABLES: Final = (
    "CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR(50), v INT)",
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer_id BIGINT, total INT, KEY (customer_id))",
    "CREATE TABLE bare (id BIGINT PRIMARY KEY, customer_id BIGINT)",
    "CREATE TABLE loose (id BIGINT PRIMARY KEY) ENGINE = MyISAM",
    "CREATE TABLE child (id BIGINT PRIMARY KEY, c BIGINT,"
    " FOREIGN KEY (c) REFERENCES customers (id) ON DELETE CASCADE)",
)
DURABLE: Final = {"sync_binlog": "1", "innodb_flush_log_at_trx_commit": "1", "binlog_expire_logs_seconds": "864000"}


@dataclass(frozen=True, slots=True)
class System:
    """Servers that are set up as they should be, and the file that names them."""

    pair: Pair
    node: Memcached
    folder: Path

    @property
    def flavor(self) -> Flavor:
        return self.primary.flavor

    @property
    def primary(self) -> DatabaseServer:
        return self.pair.primary

    @property
    def replica(self) -> DatabaseServer:
        return self.pair.replica

    def write(self, **options: Any) -> Path:
        settings: dict[str, Any] = {
            "flavor": self.flavor,
            "primary": self.primary.url,
            "nodes": [self.node.address],
            "replicas": [self.replica.url],
            "objects": CUSTOMER + PROFILE,
            **options,
        }
        return write_config(
            self.folder, settings.pop("flavor"), settings.pop("primary"), settings.pop("nodes"), **settings
        )

    def check(self, **options: Any) -> list[CheckFinding]:
        return run_check(self.write(**options))

    def server_at(self, where: str) -> DatabaseServer:
        return next(one for one in (self.primary, self.replica) if where.endswith(f":{one.port}"))

    def heartbeats(self) -> HeartbeatWriter:
        config = load_config(self.write())
        address = config.keyspaces["shop"].shards[0].primary
        return HeartbeatWriter(address, self.flavor, "me", 0.0)

    def beat(self) -> None:
        with closing(self.heartbeats()) as writer:
            writer.prepare()
            writer.beat()
        self.pair.wait_caught_up()


def run_check(path: Path) -> list[CheckFinding]:
    checkup = Checkup(load_config(path))
    checkup.run()
    return [each for each in checkup.findings if each.rule is not Rule.UNTESTED]  # a mirror may move on


@pytest.fixture(scope="module")
def mariadb_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with right_system("mariadb", tmp_path_factory.mktemp("mariadb")) as system:
        yield system


@pytest.fixture(scope="module")
def mysql_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with right_system("mysql", tmp_path_factory.mktemp("mysql")) as system:
        yield system


@contextmanager
def right_system(flavor: Flavor, folder: Path) -> Iterator[System]:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in DURABLE.items()]
    with (
        database_pair(flavor, primary_options=options, replica_options=[*options, "--read-only=1"]) as pair,
        Memcached() as node,
    ):
        system = System(pair, node, folder)
        for table in TABLES:
            pair.primary.execute(table, database="shop")
        system.beat()
        yield system


@pytest.fixture
def system(flavor: Flavor, request: pytest.FixtureRequest) -> System:
    chosen: System = request.getfixturevalue(f"{flavor}_system")
    return chosen


def test_nothing_is_found_where_all_is_right(system: System) -> None:
    assert system.check() == []


# -- the mistakes ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """``make``: a context in which the mistake is there; it gives the options of the file."""

    name: str
    make: Callable[[System], Any]
    rules: frozenset[Rule]
    flavors: Sequence[Flavor] = BOTH


CASES: Final[list[Case]] = []


def case(*rules: Rule, flavors: Sequence[Flavor] = BOTH) -> Callable[[Callable[[System], Any]], Any]:
    """Registers a generator as a case of these rules."""

    def register(make: Callable[[System], Any]) -> Any:
        CASES.append(Case(make.__name__, contextmanager(make), frozenset(rules), flavors))
        return make

    return register


def wrong_variable(
    rule: Rule, name: str, value: str, flavors: Sequence[Flavor] = BOTH, *, of: str = "primary", **options: Any
) -> None:
    @contextmanager
    def make(system: System) -> Iterator[Mapping[str, Any]]:
        with getattr(system, of).setting(name, value):
            yield options

    told = f"{name}={value} of the {of}{' with ' + ', '.join(options) if options else ''}"
    CASES.append(Case(told, make, frozenset((rule,)), flavors))


def wrong_file(rules: Sequence[Rule], name: str, **options: Any) -> None:
    @contextmanager
    def make(system: System) -> Iterator[Mapping[str, Any]]:
        yield options

    CASES.append(Case(name, make, frozenset(rules)))


MARIADB: Final[tuple[Flavor]] = ("mariadb",)
MYSQL: Final[tuple[Flavor]] = ("mysql",)
ADOPTS: Final = {"adopt_promotions": True}

wrong_variable(Rule.LOG_FORMAT, "binlog_format", "MIXED", MARIADB)
wrong_variable(Rule.LOG_FORMAT, "binlog_format", "STATEMENT")
wrong_variable(Rule.ROW_IMAGE, "binlog_row_image", "MINIMAL")
wrong_variable(Rule.ROW_IMAGE, "binlog_row_image", "NOBLOB")
wrong_variable(Rule.ROW_METADATA, "binlog_row_metadata", "NO_LOG", MARIADB)
wrong_variable(Rule.ROW_METADATA, "binlog_row_metadata", "MINIMAL")
wrong_variable(Rule.STRICT_MODE, "gtid_strict_mode", "OFF", MARIADB)
wrong_variable(Rule.GTID_MODE, "gtid_mode", "ON_PERMISSIVE", MYSQL)
wrong_variable(Rule.PARTIAL_JSON, "binlog_row_value_options", "'PARTIAL_JSON'", MYSQL)
wrong_variable(Rule.SYNC_BINLOG, "sync_binlog", "0")
wrong_variable(Rule.FLUSH_LOG, "innodb_flush_log_at_trx_commit", "2")
wrong_variable(Rule.RETENTION, "binlog_expire_logs_seconds", "3600")
wrong_variable(Rule.INIT_CONNECT, "init_connect", "'SET sql_log_bin = 0'")
wrong_variable(Rule.INIT_CONNECT, "init_connect", "'SET SESSION binlog_format = STATEMENT'")
wrong_variable(Rule.TEMPORAL_FORMAT, "mysql56_temporal_format", "OFF", MARIADB)
wrong_variable(Rule.CHECKSUM, "binlog_checksum", "NONE")
wrong_variable(Rule.PRIMARY_READ_ONLY, "read_only", "1")
wrong_variable(Rule.SERVER_ID, "server_id", "0", MYSQL)
wrong_variable(Rule.CONNECTIONS, "max_connections", "20")
wrong_variable(Rule.CONNECTIONS, "max_connections", "20", of="replica")

wrong_variable(Rule.GTID_MODE, "gtid_mode", "ON_PERMISSIVE", MYSQL, of="replica")
wrong_variable(Rule.REPLICA_WRITABLE, "read_only", "0", of="replica")
wrong_variable(Rule.REPLICA_SKIPS, "slave_exec_mode", "IDEMPOTENT", MARIADB, of="replica")
wrong_variable(Rule.REPLICA_SKIPS, "replica_exec_mode", "IDEMPOTENT", MYSQL, of="replica")
wrong_variable(Rule.SERVER_ID_CLASH, "server_id", "1", of="replica")
wrong_variable(Rule.ADOPTION_BLOCKED, "read_only", "0", of="replica", shard=ADOPTS)
wrong_variable(Rule.NOT_PROMOTABLE, "binlog_row_metadata", "MINIMAL", of="replica", shard=ADOPTS)
wrong_variable(
    Rule.ROW_METADATA, "binlog_row_metadata", "MINIMAL", of="replica", stream={"replica_choice": "freshest"}
)

wrong_file([Rule.LOSSLESS], "a failover that is said to be lossless", shard={"lossless_failover": True})
wrong_file([Rule.ZONE], "a zone without replicas", cache={"zone": "b"})
wrong_file([Rule.REFUSED], "a table that is not there", objects=CUSTOMER.replace("customers", "custmers"))
wrong_file(
    [Rule.REFUSED],
    "a column that is not there",
    objects=PROFILE.replace('orders = "customer_id"', 'orders = "client_id"'),
)
wrong_file(
    [Rule.REFUSED], "a key that is not unique", objects='[objects.by_name]\ntable = "customers"\nkey = "name"\n'
)
wrong_file([Rule.NO_INDEX], "a member without an index", objects=PROFILE.replace("orders", "bare"))
wrong_file([Rule.ENGINE], "an engine without transactions", objects=CUSTOMER.replace("customers", "loose"))


@case(Rule.FLAVOR)
def the_other_flavor(system: System) -> Iterator[Mapping[str, Any]]:
    yield {"flavor": "mysql" if system.flavor == "mariadb" else "mariadb"}


@case(Rule.CASCADE, flavors=MARIADB)
def a_cascade(system: System) -> Iterator[Mapping[str, Any]]:
    yield {"objects": CUSTOMER.replace("customers", "child")}


@case(Rule.VERSIONED_BY_TRANSACTION, flavors=MARIADB)
def a_past_by_transaction_ids(system: System) -> Iterator[Mapping[str, Any]]:
    kind = "BIGINT UNSIGNED GENERATED ALWAYS AS ROW"
    columns = f"id INT PRIMARY KEY, a {kind} START, b {kind} END, PERIOD FOR SYSTEM_TIME(a, b)"
    system.primary.execute(f"CREATE TABLE past ({columns}) WITH SYSTEM VERSIONING", database="shop")
    system.pair.wait_caught_up()
    try:
        yield {}
    finally:
        system.primary.execute("DROP TABLE past", database="shop")
        system.pair.wait_caught_up()


@case(Rule.NOT_DECODED, flavors=MYSQL)
def a_type_that_the_driver_does_not_know(system: System) -> Iterator[Mapping[str, Any]]:
    system.primary.execute("CREATE TABLE points (id INT PRIMARY KEY, v VECTOR(2))", database="shop")
    system.pair.wait_caught_up()
    try:
        system.primary.execute("INSERT INTO points VALUES (1, STRING_TO_VECTOR('[1, 2]'))", database="shop")
        with pytest.raises(UnicodeDecodeError):
            system.primary.execute("SELECT * FROM points", database="shop")
        yield {"objects": CUSTOMER.replace("customers", "points")}
        system.primary.execute("ALTER TABLE points ALTER COLUMN v SET INVISIBLE", database="shop")
        system.pair.wait_caught_up()
        assert system.check(objects=CUSTOMER.replace("customers", "points")) == []
    finally:
        system.primary.execute("DROP TABLE points", database="shop")
        system.pair.wait_caught_up()


@case(Rule.COMPRESSION, flavors=MYSQL)
def a_package_that_is_not_installed(system: System) -> Iterator[Mapping[str, Any]]:
    find = importlib.util.find_spec
    with system.primary.setting("binlog_transaction_compression", "ON"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None if name == "zstandard" else find(name))
        yield {}


@case(Rule.CLOCK)
def an_own_clock_that_is_wrong(system: System) -> Iterator[Mapping[str, Any]]:
    now = time.time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now() - 300)
        yield {}


@contextmanager
def account(server: DatabaseServer, *grants: str) -> Iterator[str]:
    server.execute("CREATE USER few@'%' IDENTIFIED BY 'few'")
    try:
        for grant in grants:
            server.execute(f"GRANT {grant} TO few@'%'")
        yield server.url.replace("app:app", "few:few")
    finally:
        server.execute("DROP USER few@'%'")


BEATS: Final = "CREATE, SELECT, INSERT, UPDATE, DELETE ON shop.*"
MONITOR: Final[Mapping[Flavor, str]] = {"mariadb": "BINLOG MONITOR, REPLICA MONITOR", "mysql": "REPLICATION CLIENT"}


@case(Rule.RIGHT)
def an_account_that_may_not_follow_the_log(system: System) -> Iterator[Mapping[str, Any]]:
    with account(system.primary, BEATS, f"{MONITOR[system.flavor]} ON *.*") as url:
        yield {"primary": url, "replicas": []}


@case(Rule.REFUSED)
def an_account_that_may_not_write_heartbeats(system: System) -> Iterator[Mapping[str, Any]]:
    rights = f"REPLICATION SLAVE, {MONITOR[system.flavor]} ON *.*"
    with account(system.primary, rights, BEATS.replace("INSERT, ", "")) as url:
        yield {"primary": url, "replicas": []}


@case(Rule.REFUSED)
def a_wrong_password(system: System) -> Iterator[Mapping[str, Any]]:
    yield {"replicas": [system.replica.url.replace("app:app", "app:wrong")]}


@case(Rule.REFUSED)
def a_replica_that_is_down(system: System) -> Iterator[Mapping[str, Any]]:
    yield {"replicas": ["mysql://app:app@127.0.0.1:1/shop"]}


@case(Rule.HIDDEN)
def accounts_that_may_only_read_a_replica(system: System) -> Iterator[Mapping[str, Any]]:
    """The invalidator's account is not there, and the application's sees no replication."""
    reader = system.replica.url.replace("app:app", "reader:reader")
    with account(system.primary, f"REPLICATION SLAVE, {MONITOR[system.flavor]} ON *.*", BEATS) as url:
        system.pair.wait_caught_up()
        keep_to_itself(system.replica, "DROP USER few@'%'")
        try:
            yield {"primary": url, "replicas": [reader]}
        finally:
            keep_to_itself(system.replica, "CREATE USER few@'%' IDENTIFIED BY 'few'")
    system.pair.wait_caught_up()


def keep_to_itself(server: DatabaseServer, *statements: str) -> None:
    """Statements that are not in the server's log."""
    with server.connect("shop") as connection, connection.cursor() as cursor:
        for statement in ("SET sql_log_bin = 0", *statements):
            cursor.execute(statement)


@case(Rule.REPLICA_WRITABLE)
def an_application_that_may_only_read(system: System) -> Iterator[Mapping[str, Any]]:
    """Its account sees no replication; the invalidator's does."""
    with system.replica.setting("read_only", "0"):
        yield {"replicas": [system.replica.url.replace("app:app", "reader:reader")]}


@case(Rule.TABLE_UNREADABLE)
def an_account_that_may_not_read_a_table(system: System) -> Iterator[Mapping[str, Any]]:
    with account(
        system.primary,
        f"REPLICATION SLAVE, {MONITOR[system.flavor]} ON *.*",
        BEATS.replace("shop.*", f"shop.{HEARTBEAT_TABLE}"),
        "SELECT (id) ON shop.customers",
    ) as url:
        yield {"primary": url, "replicas": [], "objects": CUSTOMER}


@case(Rule.SAME_SERVER)
def a_replica_that_is_the_primary(system: System) -> Iterator[Mapping[str, Any]]:
    yield {"replicas": [system.primary.url.replace("127.0.0.1", "localhost")]}


@case(Rule.TOPOLOGY)
def a_later_topology(system: System) -> Iterator[Mapping[str, Any]]:
    system.primary.execute(f"INSERT INTO {HEARTBEAT_TABLE} VALUES ('=later', 7, 0, 0, 0, 'shop')", database="shop")
    try:
        yield {}
    finally:
        system.primary.execute(f"DELETE FROM {HEARTBEAT_TABLE} WHERE id = '=later'", database="shop")


@case(Rule.HEARTBEAT_TABLE)
def no_invalidator_has_ever_run(system: System) -> Iterator[Mapping[str, Any]]:
    system.primary.execute(f"DROP TABLE {HEARTBEAT_TABLE}", database="shop")
    system.pair.wait_caught_up()
    try:
        yield {}
    finally:
        system.beat()


@case(Rule.NO_HEARTBEATS)
def a_replica_without_the_heartbeat_table(system: System) -> Iterator[Mapping[str, Any]]:
    keep_to_itself(system.replica, f"RENAME TABLE {HEARTBEAT_TABLE} TO away")
    try:
        yield {}
    finally:
        keep_to_itself(system.replica, f"RENAME TABLE away TO {HEARTBEAT_TABLE}")


@case(Rule.NOT_REPLICATING)
def a_replication_that_is_stopped(system: System) -> Iterator[Mapping[str, Any]]:
    system.replica.stop_replication()
    try:
        yield {}
    finally:
        system.replica.start_replication()


@case(Rule.NOT_REPLICATING)
def a_replica_that_follows_nobody(system: System) -> Iterator[Mapping[str, Any]]:
    system.replica.remove_sources()
    try:
        yield {}
    finally:
        system.replica.replicate_from(system.primary)


@case(Rule.DELAYED)
def a_replica_that_is_meant_to_be_late(system: System) -> Iterator[Mapping[str, Any]]:
    system.replica.replicate_from(system.primary, delay_seconds=600)
    try:
        yield {}
    finally:
        system.replica.replicate_from(system.primary)
        system.pair.wait_caught_up()


@case(Rule.LAGS)
def a_replica_that_is_behind(system: System) -> Iterator[Mapping[str, Any]]:
    with system.replica.connect() as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        system.primary.execute(
            f"UPDATE {HEARTBEAT_TABLE} SET min_us = min_us + 600000000 WHERE id = 'me'", database="shop"
        )
        try:
            yield {}
        finally:
            cursor.execute("UNLOCK TABLES")
            system.pair.wait_caught_up()


@case(Rule.ERRANT)
def a_write_to_the_replica(system: System) -> Iterator[Mapping[str, Any]]:
    with system.replica.connect("shop") as connection, connection.cursor() as cursor:
        if system.flavor == "mariadb":
            cursor.execute("SET gtid_domain_id = 9")
        cursor.execute("CREATE TABLE errant (id INT)")
    [(uuid,)] = system.replica.execute("SELECT @@server_uuid" if system.flavor == "mysql" else "SELECT @@server_id")
    try:
        yield {}
    finally:
        if system.flavor == "mysql":
            with system.primary.connect() as connection, connection.cursor() as cursor:
                for statement in (f"SET gtid_next = '{uuid}:1'", "BEGIN", "COMMIT", "SET gtid_next = 'AUTOMATIC'"):
                    cursor.execute(statement)
        else:
            system.replica.execute("FLUSH BINARY LOGS")
            [(log, *_)] = system.replica.execute("SHOW MASTER STATUS")
            wait_until(lambda: forget_logs(system.replica, str(log)), "the domain is not in the log any more")
        system.pair.wait_caught_up()


def forget_logs(server: DatabaseServer, log: str) -> bool:
    """Whether its log has nothing of domain 9 any more. Files that are still in use are kept for a moment."""
    server.execute("PURGE BINARY LOGS TO %s", log)
    try:
        server.execute("FLUSH BINARY LOGS DELETE_DOMAIN_ID = (9)")
    except pymysql.MySQLError:
        return False
    return True


@contextmanager
def filtering(replica: DatabaseServer) -> Iterator[None]:
    def set_filter(table: str) -> None:
        replica.stop_replication()
        if replica.flavor == "mysql":
            replica.execute(f"CHANGE REPLICATION FILTER REPLICATE_IGNORE_TABLE = ({table})")
        else:
            replica.execute("SET GLOBAL replicate_ignore_table = %s", table)
        replica.start_replication()

    set_filter("shop.bare")
    try:
        yield
    finally:
        set_filter("")


@case(Rule.REPLICA_FILTER)
def a_replica_that_leaves_out_a_table(system: System) -> Iterator[Mapping[str, Any]]:
    with filtering(system.replica):
        yield {}


@case(Rule.REPLICA_FILTER, Rule.LOG_NOT_READ)
def a_log_that_leaves_out_a_table(system: System) -> Iterator[Mapping[str, Any]]:
    with filtering(system.replica):
        yield {"stream": {"replica_choice": "freshest"}}


@case(Rule.LOG_NOT_READ, flavors=MYSQL)
def a_log_in_another_order(system: System) -> Iterator[Mapping[str, Any]]:
    system.replica.stop_replication()
    with system.replica.setting("replica_preserve_commit_order", "OFF"):
        system.replica.start_replication()
        yield {"stream": {"replica_choice": "freshest"}}
        system.replica.stop_replication()
    system.replica.start_replication()


# -- cache nodes -------------------------------------------------------------------------------------------


def wrong_node(rules: Sequence[Rule], name: str, *options: str, memory_mb: int = 64, **file: Any) -> None:
    """A memcached that is started with these options. It is the same beside each database."""

    @contextmanager
    def make(system: System) -> Iterator[Mapping[str, Any]]:
        with Memcached(options=options, memory_mb=memory_mb) as node:
            yield {"nodes": [node.address], **file}

    CASES.append(Case(name, make, frozenset(rules), MARIADB))


def wrong_redis(rules: Sequence[Rule], name: str, *options: str, **file: Any) -> None:
    """The same with Redis, of which the rest is right."""

    @contextmanager
    def make(system: System) -> Iterator[Mapping[str, Any]]:
        with Redis(options=[*RIGHT_REDIS, *options]) as node:
            yield {"nodes": [node.address], "cache": {"backend": "redis", **file}}

    CASES.append(Case(name, make, frozenset(rules), MARIADB))


RIGHT_REDIS: Final = ("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")

wrong_node([Rule.REFUSED], "memcached without CAS", "-C")
wrong_node([Rule.NO_EVICTION], "memcached that may not evict", "-M")
wrong_node([Rule.SMALL_ITEMS], "memcached with small items", "-I", "512k")
wrong_node([Rule.SMALL_NODE], "memcached that is too small", memory_mb=4, stripes=65_536)
wrong_node([Rule.NODE_CONNECTIONS], "memcached with few connections", "-c", "30")
wrong_node([Rule.IDLE_TIMEOUT], "memcached that ends connections", "-o", "idle_timeout=60")
wrong_redis([Rule.NO_EVICTION], "Redis that may not evict", "--maxmemory-policy", "noeviction")
wrong_redis([Rule.NO_MEMORY_BOUND], "Redis without a bound", "--maxmemory", "0")
wrong_redis([Rule.PERSISTENT], "Redis that saves", "--save", "60 1000")
wrong_redis([Rule.PERSISTENT], "Redis that appends", "--appendonly", "yes")
wrong_redis([Rule.IDLE_TIMEOUT], "Redis that ends connections", "--timeout", "60")
wrong_redis([Rule.NODE_CONNECTIONS], "Redis with few connections", "--maxclients", "16")
wrong_redis([Rule.REDIS_CLUSTER], "Redis in a cluster", "--cluster-enabled", "yes")
wrong_redis([Rule.REDIS_REPLICA], "Redis that is a replica", "--replicaof", "127.0.0.1 1")
wrong_redis([Rule.CONFIG_HIDDEN], "Redis without CONFIG", "--rename-command", "CONFIG", "")
wrong_file([Rule.NODE_DOWN], "a node that is down", nodes=["127.0.0.1:1"])


@case(Rule.NODES_FROM)
def a_node_that_the_source_alone_names(system: System) -> Iterator[Mapping[str, Any]]:
    (system.folder / "nodes").write_text(f"{system.node.address}\n127.0.0.1:1\n")
    yield {"cache": {"nodes_from": "file:nodes"}}


def test_nothing_is_found_where_redis_is_right(mariadb_system: System) -> None:
    with Redis(options=RIGHT_REDIS) as node:
        assert mariadb_system.check(nodes=[node.address], cache={"backend": "redis"}) == []


@case(Rule.NODE_RIGHT, flavors=MARIADB)
def a_user_that_may_not_ask_info(system: System) -> Iterator[Mapping[str, Any]]:
    with redis_with_user(RIGHTS.replace("+info ", "")) as options:
        yield options


@case(Rule.NODE_RIGHT, flavors=MARIADB)
def a_user_that_may_run_no_scripts(system: System) -> Iterator[Mapping[str, Any]]:
    with redis_with_user(RIGHTS.replace("+@scripting ", "")) as options:
        yield options


@case(Rule.NODE_RIGHT, flavors=MARIADB)
def a_wrong_password_of_a_node(system: System) -> Iterator[Mapping[str, Any]]:
    with redis_with_user(RIGHTS) as options:
        yield {**options, "cache": {**options["cache"], "password": "wrong"}}


@contextmanager
def redis_with_user(rights: str) -> Iterator[Mapping[str, Any]]:
    with Redis(options=RIGHT_REDIS) as node:
        with closing(RedisClient(port=node.port)) as client:
            rules = ("on", ">secret", "~shop:*", *rights.split())
            client.execute_command("ACL", "SETUSER", "cache", *rules)  # type: ignore[no-untyped-call]
        login = {"username": "cache", "password": "secret"}
        yield {"nodes": [node.address], "cache": {"backend": "redis", **login}}


def test_the_rights_that_are_named_are_enough(mariadb_system: System) -> None:
    assert RIGHTS in " ".join((CHECKOUT / "docs/config.md").read_text().split())
    with redis_with_user(RIGHTS) as options:
        assert mariadb_system.check(**options) == []


@case(Rule.OPEN_FILES)
def a_machine_that_allows_few_files(system: System) -> Iterator[Mapping[str, Any]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        yield {"cache": {"connections_max": 100}}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@case(Rule.TWO_NAMES)
def one_node_under_two_names(system: System) -> Iterator[Mapping[str, Any]]:
    yield {"nodes": [system.node.address, f"localhost:{system.node.port}"]}


@contextmanager
def several_addresses(name: str) -> Iterator[None]:
    """A name of which only the first address answers."""
    look_up = socket.getaddrinfo

    def answer(host: Any, port: Any, *arguments: Any, **options: Any) -> list[Any]:
        found = look_up("127.0.0.1" if host == name else host, port, *arguments, **options)
        return found if host != name else [*found, *look_up("127.9.9.9", port, *arguments, **options)]

    with patch.object(socket, "getaddrinfo", answer):
        yield


@case(Rule.SEVERAL_ADDRESSES)
def one_name_for_several_nodes(system: System) -> Iterator[Mapping[str, Any]]:
    with several_addresses("memcached.shop"):
        yield {"nodes": [f"memcached.shop:{system.node.port}"]}


@case(Rule.SEVERAL_ADDRESSES)
def one_name_for_several_replicas(system: System) -> Iterator[Mapping[str, Any]]:
    with several_addresses("replicas.shop"):
        yield {"replicas": [system.replica.url.replace("127.0.0.1", "replicas.shop")]}


@case(Rule.REFUSED, flavors=MARIADB)
def redis_in_the_place_of_memcached(system: System) -> Iterator[Mapping[str, Any]]:
    with Redis() as node:
        yield {"nodes": [node.address]}


@case(Rule.REFUSED, flavors=MARIADB)
def memcached_in_the_place_of_redis(system: System) -> Iterator[Mapping[str, Any]]:
    yield {"cache": {"backend": "redis"}}


@case(Rule.EVICTIONS, flavors=MARIADB)
def a_node_that_evicts(system: System) -> Iterator[Mapping[str, Any]]:
    with Memcached(memory_mb=2) as node, node.connect() as connection, connection.makefile("rb") as answers:
        for number in range(40):
            connection.sendall(b"set neighbour-%d 0 0 400000\r\n%b\r\n" % (number, b"x" * 400_000))
            answers.readline()
        assert int(node.stats()["evictions"])
        yield {"nodes": [node.address]}


@contextmanager
def kept_record(system: System, **changes: Any) -> Iterator[Mapping[str, Any]]:
    """A node record as another invalidator would keep it."""
    config = load_config(system.write())
    (lineage,) = config.lineages
    nothing = empty_position(system.flavor)
    record = NodeRecord(
        lineage=lineage,
        life=b"l" * 8,
        tenure=b"t" * 8,
        is_open=True,
        epoch=1,
        ring=Placement(config.cache.nodes, "shop").ring_version,
        as_of_us=0,
        heartbeat_age_ms=0,
        node=system.node.address,
        stripes=1,
        progress=nothing,
        floor=nothing,
    )
    key = record_key("shop", lineage)
    with closing(MemcachedNode(system.node.address)) as node:
        node.perform([Add(key, replace(record, **changes).encode(), 60, is_bound=True)])
        try:
            yield {}
        finally:
            node.perform([Delete(key)])


@case(Rule.RING)
def an_invalidator_with_another_ring(system: System) -> Iterator[Mapping[str, Any]]:
    with kept_record(system, ring=7) as options:
        yield options


@case(Rule.TOPOLOGY)
def a_node_of_a_later_topology(system: System) -> Iterator[Mapping[str, Any]]:
    with kept_record(system, topology=9) as options:
        yield options


# -- each of them ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flavor", "mistake"),
    [
        pytest.param(flavor, one, id=f"{flavor}-{one.name}")
        for flavor in BOTH
        for one in CASES
        if flavor in one.flavors
    ],
    indirect=["flavor"],
)
def test_each_mistake_is_found_with_its_remedy(system: System, mistake: Case) -> None:
    with mistake.make(system) as options:
        found = system.check(**options)
        assert {each.rule for each in found} == mistake.rules, "\n".join(map(str, found))
        for each in found:
            assert each.hint
            server = system.server_at(each.where) if each.statements else None
            for statement in each.statements:
                assert server is not None
                server.execute(statement, database="shop")
        if all(each.statements for each in found):
            left = system.check(**options)
            assert not {each.rule for each in left} & mistake.rules, f"its statements mend it: {left}"
            undo(system, found)


def test_nothing_is_found_where_all_mistakes_were_mended(system: System) -> None:
    assert system.check() == []


def undo(system: System, found: Sequence[CheckFinding]) -> None:
    """Nothing of the remedies outlasts the case."""
    for each in found:
        server = system.server_at(each.where)
        for statement in each.statements:
            words = statement.split()
            if words[:2] == ["SET", "PERSIST"]:
                server.execute(f"RESET PERSIST IF EXISTS {words[2]}")
            elif words[:2] == ["CREATE", "INDEX"]:
                server.execute(f"DROP INDEX {words[2]} ON {words[4]}", database="shop")
            elif words[:2] == ["ALTER", "TABLE"]:
                server.execute(f"ALTER TABLE {words[2]} ENGINE = MyISAM", database="shop")


def test_what_is_safe_is_mended_on_request(system: System) -> None:
    def say(*options: str) -> tuple[int, set[tuple[str, bool]]]:
        ran = call_cli("check", "-c", path, "--json", *options)
        return ran.returncode, {(each["rule"], each["mended"]) for each in json.loads(ran.stdout)}

    path = system.write()
    system.primary.execute(f"DROP TABLE {HEARTBEAT_TABLE}", database="shop")
    with system.primary.setting("binlog_row_metadata", "MINIMAL"), system.primary.setting("sync_binlog", "0"):
        wrong = {("row-metadata", False), ("heartbeat-table", False), ("sync-binlog", False)}
        assert say() == (4, wrong)
        assert say("--fix") == (0, {("row-metadata", True), ("heartbeat-table", True), ("sync-binlog", False)})
        assert system.primary.execute("SELECT @@global.binlog_row_metadata, @@global.sync_binlog") == [("FULL", 0)]
        assert say("--fix") == (0, {("sync-binlog", False)})
    system.beat()
    if system.flavor == "mysql":
        system.primary.execute("RESET PERSIST IF EXISTS binlog_row_metadata")


def test_a_remedy_that_is_refused_is_told(system: System) -> None:
    """The account may do everything but set variables."""
    rights = f"REPLICATION SLAVE, {MONITOR[system.flavor]} ON *.*"
    with account(system.primary, rights, BEATS) as url, system.primary.setting("binlog_row_metadata", "MINIMAL"):
        path = system.write(primary=url, replicas=[])
        ran = call_cli("check", "-c", path, "--fix")
        assert ran.returncode == 4
        assert "mended" not in ran.stdout
        assert "Access denied" in ran.stdout
        assert system.primary.execute("SELECT @@global.binlog_row_metadata") == [("MINIMAL",)]


def test_there_are_forty_mistakes() -> None:
    assert len({one.name for one in CASES}) == len(CASES) >= 40


ELSEWHERE: Final[Mapping[Rule, str]] = {
    Rule.SEVERAL_WRITERS: "integration/invalidator/test_preflight.py::test_a_node_of_galera_is_refused_by_name",
    Rule.LOG_IN_ENGINE: "tests/unit/invalidator/rules/test_primary.py::test_a_log_in_innodb",
    Rule.UNTESTED: "tests/unit/invalidator/rules/test_primary.py::test_a_version_that_nobody_tested",
    Rule.PRIMARY_SPREAD: "integration/invalidator/test_haproxy.py::test_an_address_that_leads_to_each_server_in_turn",
    Rule.LOG_OFF: "integration/invalidator/test_preflight.py::test_a_server_without_a_binary_log",
    Rule.LOG_FILTER: "integration/invalidator/test_preflight.py::test_a_log_that_leaves_out_databases",
    Rule.UPDATES_NOT_LOGGED: "integration/invalidator/test_preflight.py::"
    "test_a_primary_that_does_not_log_what_it_replicates",
    Rule.NEVER_CONTAINED: "integration/invalidator/test_checkup.py::"
    "test_a_domain_that_the_primary_has_and_a_replica_does_not_show",
    Rule.NODE_FULL: "integration/invalidator/test_checkup.py::"
    "test_a_node_that_a_neighbour_has_filled_is_told_as_such",
    Rule.PAST: "integration/invalidator/test_checkup.py::test_a_server_whose_sessions_read_the_past",
    Rule.PRIMARY_CHANGED: "integration/invalidator/test_checkup.py::test_a_primary_with_another_identity",
    Rule.OTHER_CACHE: "tests/unit/invalidator/rules/test_node.py::test_other_servers_that_speak_redis",
    Rule.AURORA_READER: "tests/unit/invalidator/rules/test_replica.py::test_a_reader_of_aurora",
    Rule.OLD_SERVER: "tests/unit/invalidator/rules/test_primary.py::test_a_server_that_is_too_old",
    Rule.SERVICE: "tests/unit/invalidator/rules/test_service.py::test_a_service_is_known_by_what_it_answers",
    Rule.TABLET_CASCADE: "integration/vitess/test_keyspace.py::"
    "test_a_tablet_that_would_lose_invalidations_is_refused",
}
"""Where other rules are tested: they need servers of their own, or answers that no server here gives."""


def test_each_rule_has_a_case() -> None:
    made = {rule for one in CASES for rule in one.rules}
    assert set(Rule) - made == set(ELSEWHERE)
    for place in ELSEWHERE.values():
        path, _, name = place.partition("::")
        assert f"def {name}(" in Path(path).read_text(), place
