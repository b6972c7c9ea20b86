"""freshness.toml: what is accepted, and that every mistake is named with its place, all in one report."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import TypeAlias

import pytest

from docs.generate import describe_settings
from freshness.config.access import NodeAccess, NodeLogin, PasswordCommand, PasswordFile, PasswordVariable, Tls
from freshness.config.config import Config, load_config
from freshness.config.keyspace import SkippedTransaction
from freshness.config.server import ServerAddress
from freshness.errors import ConfigError
from freshness.login import find_password

Load: TypeAlias = Callable[..., Config]

MINIMAL = """
[cache]
nodes = ["127.0.0.1:11211"]
namespace = "shop"
[keyspaces.shop]
flavor = "mysql"
[[keyspaces.shop.shards]]
primary = "mysql://app@127.0.0.1:3306/shop"
[objects.customer]
table = "customers"
"""

# The example of the interface document, with one shard.
EXAMPLE = """
[cache]
backend = "memcached"                   # "memcached" | "redis" | "memory" (embedded, one process)
nodes = ["127.0.0.1:11211", "127.0.0.1:11212"]
namespace = "shop"
value_ttl_seconds = 86_400
stripes = 65_536                        # of each shard on each node
lease_seconds = 3                       # L
max_staleness_seconds = 10              # hits are served while the node's lease is younger than this
on_stale = "bypass"                     # "bypass" | "serve"

[keyspaces.shop]
flavor = "mysql"                        # "mysql" | "mariadb"

[[keyspaces.shop.shards]]
name = "-80"                            # the name is the key range
primary = "mysql://app@127.0.0.1:3306/shop"
replicas = ["mysql://app@127.0.0.1:3307/shop"]

[objects.customer]                      # one row, key from the primary key
table = "customers"

[objects.profile]                       # composite: built from rows of several tables
key = "customer_id"
members = { customers = "customer_id", addresses = "customer_id", orders = "customer_id" }

[stream]
start = "progress"                      # "progress" | "now" | a timestamp | a token
rewind_seconds = 30
replica_choice = "freshest"             # "freshest" | "slowest" | "primary"
minimize_skew = false
heartbeat_seconds = 1

[archive]
path = "archive/"                       # local or object store

[http]
listen = "127.0.0.1:8080"               # other than loopback demands a token
"""


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(text: str, **environ: str) -> Config:
        path = tmp_path / "freshness.toml"
        path.write_text(text, encoding="utf-8")
        return load_config(path, environ)

    return load


def _problems(load: Load, text: str, **environ: str) -> list[str]:
    """The lines of the report that are problems, without the name of the file."""
    with pytest.raises(ConfigError) as caught:
        load(text, **environ)
    assert caught.value.exit_code == 2
    head, *lines = caught.value.message.rstrip("\n").split("\n")
    assert f"{len(lines)} problem" in head
    assert all(line.startswith("  freshness.toml: ") for line in lines)
    return [line.removeprefix("  freshness.toml: ") for line in lines]


# -- what is accepted ---------------------------------------------------------------------------------


def test_the_example_of_the_interface_document(load: Load, tmp_path: Path) -> None:
    config = load(EXAMPLE)
    assert config.path == tmp_path / "freshness.toml"
    assert config.cache.nodes == ("127.0.0.1:11211", "127.0.0.1:11212")
    assert config.cache.stripes == 65_536
    assert config.cache.heartbeat_age_max_seconds == 10 - 2 * 3 - 1
    (shard,) = config.keyspaces["shop"].shards
    assert (shard.name, shard.lineage) == ("-80", "shop/-80")
    assert shard.primary == ServerAddress("127.0.0.1", 3306, "app", "", "shop")
    assert [replica.port for replica in shard.replicas] == [3307]
    customer, profile = config.objects["customer"], config.objects["profile"]
    assert (customer.name, customer.keyspace, customer.is_composite) == ("customer", "shop", False)
    assert customer.tables == ("customers",)
    assert (profile.key, profile.is_composite) == (("customer_id",), True)
    assert profile.tables == ("customers", "addresses", "orders")
    assert profile.members["orders"] == ("customer_id",)
    assert config.http.listen == "127.0.0.1:8080"


def test_what_is_left_out_has_its_default(load: Load) -> None:
    config = load(MINIMAL)
    cache, stream = config.cache, config.stream
    assert (cache.backend, cache.on_stale) == ("memcached", "bypass")
    assert (cache.value_ttl_seconds, cache.stripes, cache.lease_seconds) == (86_400, 65_536, 3)
    assert (cache.max_staleness_seconds, cache.node_refresh_seconds) == (10.0, 1.0)
    assert (cache.fill_lease_ttl_seconds, cache.fill_wait_ms) == (10, 250)
    assert (stream.start, stream.replica_choice, stream.heartbeat_seconds) == ("progress", "primary", 1.0)
    assert (stream.clock_error_seconds, stream.batch_transactions_max) == (0.005, 2000)
    assert config.http.listen is None
    (shard,) = config.keyspaces["shop"].shards
    assert (shard.name, shard.lineage, shard.replicas) == ("-", "shop/-", ())


def test_a_configuration_is_frozen_and_survives_pickling(load: Load) -> None:
    config = load(EXAMPLE)
    with pytest.raises(FrozenInstanceError):
        config.cache.lease_seconds = 6  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - our own bytes


def test_an_object_names_its_keyspace_where_there_are_several(load: Load) -> None:
    second = MINIMAL.replace("[objects.customer]", '[objects.customer]\nkeyspace = "stock"') + (
        '[keyspaces.stock]\nflavor = "mariadb"\n[[keyspaces.stock.shards]]\nlineage = "west"\n'
        'primary = "mariadb://app@db.example/stock"\n'
    )
    config = load(second)
    assert config.objects["customer"].keyspace == "stock"
    assert config.keyspaces["stock"].shards[0].lineage == "west"
    assert config.keyspaces["stock"].shards[0].primary.port == 3306


def test_memory_nodes_are_any_names(load: Load) -> None:
    text = MINIMAL.replace("[cache]", '[cache]\nbackend = "memory"').replace("127.0.0.1:11211", "one")
    assert load(text).cache.nodes == ("one",)
    problems = _problems(load, text.replace('["one"]', '["one", "", "one"]'))
    assert [problem.partition(";")[0] for problem in problems] == [
        "cache.nodes[1]: found ''",
        "cache.nodes[2]: found 'one'",
    ]


@pytest.mark.parametrize("listen", ["localhost:8080", "127.1.2.3:80", "[::1]:65535"])
def test_http_listens_on_any_loopback_address(load: Load, listen: str) -> None:
    assert load(f'{MINIMAL}[http]\nlisten = "{listen}"\n').http.listen == listen


# -- what is refused: (what to replace in MINIMAL, by what, what the one problem must say) ------------

SHARD = 'primary = "mysql://app@127.0.0.1:3306/shop"'
OTHER_SHARD = 'primary = "mysql://app@127.0.0.2:3306/shop"'
CACHE, OBJECT = "[cache]", 'table = "customers"'
NODES = '["127.0.0.1:11211"]'

REFUSED: list[tuple[str, str, list[str]]] = [
    # cache: types and ranges
    (CACHE, '[cache]\nlease_seconds = "5s"', ["cache.lease_seconds: found '5s'; expected whole number from 2 to"]),
    (CACHE, "[cache]\nlease_seconds = 5.5", ["cache.lease_seconds: found 5.5; expected whole number"]),
    (CACHE, "[cache]\nlease_seconds = true", ["cache.lease_seconds: found true; expected whole number"]),
    (CACHE, "[cache]\nlease_seconds = 0", ["cache.lease_seconds: found 0; expected whole number from 2"]),
    (CACHE, "[cache]\nfill_wait_ms = -1", ["cache.fill_wait_ms: found -1; expected whole number from 0"]),
    (CACHE, "[cache]\nvalue_ttl_seconds = 2592001", ["cache.value_ttl_seconds: found 2592001", "to 2_592_000"]),
    (CACHE, "[cache]\nnode_refresh_seconds = nan", ["cache.node_refresh_seconds: found nan; expected number"]),
    (CACHE, "[cache]\nmax_staleness_seconds = inf", ["cache.max_staleness_seconds: found inf"]),
    (CACHE, "[cache]\nmax_staleness_seconds = []", ["cache.max_staleness_seconds: found an array"]),
    (CACHE, "[cache]\nvalue_ttl_seconds = 1979-05-27", ["cache.value_ttl_seconds: found a date or time"]),
    (CACHE, '[cache]\nbackend = "memcache"', ["cache.backend: found 'memcache'", '"memcached" | "redis" | "memory"']),
    (CACHE, '[cache]\non_stale = "refuse"', ['cache.on_stale: found \'refuse\'; expected "bypass" | "serve"']),
    # cache: names and nodes
    ('"shop"\n[key', '"a shop"\n[key', ["cache.namespace: found 'a shop'; expected 1 to 60 of the characters"]),
    ('"shop"\n[key', '""\n[key', ["cache.namespace: found ''"]),
    ('"shop"\n[key', f'"{"x" * 61}"\n[key', ["cache.namespace: found 'xxx", "expected 1 to 60"]),
    ('namespace = "shop"', "", ["cache.namespace: found nothing; expected text"]),
    ("nodes = " + NODES, "", ["cache.nodes: found nothing; expected array of text"]),
    (NODES, "[]", ["cache.nodes: found an empty array; expected at least one node"]),
    (NODES, '"127.0.0.1:11211"', ["cache.nodes: found '127.0.0.1:11211'; expected array of text"]),
    (NODES, "[11211]", ["cache.nodes: found an array; expected array of text"]),
    (NODES, '["cache1"]', ["cache.nodes[0]: found 'cache1'; expected HOST:PORT; no port"]),
    (NODES, NODES + '\nprevious_nodes = ["cache1"]', ["cache.previous_nodes[0]: found 'cache1'; expected HOST:PORT"]),
    (NODES, NODES + '\nnodes_from = "dns:x"', ["cache.nodes_from: found 'dns:x'; expected \"file:PATH\" or"]),
    (NODES, NODES + '\nnodes_from = "srv:"', ["cache.nodes_from: found 'srv:'; expected"]),
    (NODES, '["cache1:"]', ["cache.nodes[0]: found 'cache1:'", "no port"]),
    (NODES, '[":11211"]', ["cache.nodes[0]: found ':11211'", "the host is empty"]),
    (NODES, '["cache1:0"]', ["cache.nodes[0]: found 'cache1:0'", "port 0 is not from 1 to 65535"]),
    (NODES, '["cache1:65536"]', ["cache.nodes[0]", "port 65536 is not"]),
    (NODES, '["::1:11211"]', ["cache.nodes[0]", "an IPv6 address belongs in brackets"]),
    (NODES, '["[::1:11211"]', ["cache.nodes[0]", "an IPv6 address belongs in brackets"]),
    (NODES, '["[::1]:1", "a:1", "[::1]:1"]', ["cache.nodes[2]: found '[::1]:1'", "it is cache.nodes[0] already"]),
    (NODES, '["a:1", "A:1"]', ["cache.nodes[1]: found 'A:1'", "it is cache.nodes[0] already"]),
    (NODES, '["redis://:hunter2@h:1"]', ["cache.nodes[0]: found a text that may hold a password"]),
    (CACHE, "[cache]\nstripes = 0", ["cache.stripes: found 0; expected whole number from 1 to"]),
    (CACHE, "[cache]\nstripes = 16_777_217", ["cache.stripes: found 16777217", "to 16_777_216"]),
    # the arithmetic of the bounds
    (
        CACHE,
        "[cache]\nmax_staleness_seconds = 7.5",
        ["cache.max_staleness_seconds: found 7.5", "= 7.5 - 6 - 1 = 0.5 s", "raise max_staleness_seconds to 9"],
    ),
    (CACHE, "[stream]\nheartbeat_seconds = 2.5\n[cache]", ["cache.max_staleness_seconds: found 10", "= 5 s"]),
    (
        CACHE,
        "[cache]\nmax_staleness_seconds = 8.5\nnode_refresh_seconds = 0.1",
        ["max_staleness_seconds - 2 x lease_seconds - a flow = 8.5 - 6 - 1 = 1.5 s"],
    ),
    (
        OBJECT,
        OBJECT + "\nlocal_copy_seconds = 1.5",
        ["objects.customer.local_copy_seconds: found 1.5; expected at most cache.node_refresh_seconds = 1"],
    ),
    (
        OBJECT,
        OBJECT + "\nstale_while_revalidate_seconds = 11",
        ["stale_while_revalidate_seconds: found 11; expected at most cache.max_staleness_seconds = 10"],
    ),
    (OBJECT, OBJECT + "\ndatabase_reads_per_second = -1", ["objects.customer.database_reads_per_second"]),
    # unknown keys, with the nearest known one
    (CACHE, "[cache]\nlease_second = 5", ["cache.lease_second: found an unknown key", '"lease_seconds"?']),
    (CACHE, "[cache]\nxyz = 5", ["cache.xyz: found an unknown key; expected one of backend, "]),
    (
        CACHE,
        "[cache]\ntombstone_ttl_seconds = 120",
        ["cache.tombstone_ttl_seconds: found a setting of a previous release", "delete the line"],
    ),
    (CACHE, "[caches]\n[cache]", ["caches: found an unknown key", '"cache"?']),
    (
        CACHE,
        "[stream]\nhartbeat_seconds = 1\n[cache]",
        ["stream.hartbeat_seconds: found an unknown key", '"heartbeat_seconds"?'],
    ),
    (CACHE, "[http]\nlisten_on = 1\n[cache]", ["http.listen_on: found an unknown key", '"listen"?']),
    (OBJECT, OBJECT + '\ntabel = "x"', ["objects.customer.tabel: found an unknown key", '"table"?']),
    (SHARD, SHARD + "\nreplica = []", ["keyspaces.shop.shards[0].replica: found an unknown key", '"replicas"?']),
    ('flavor = "mysql"', 'flavor = "mysql"\nflavour = 1', ["keyspaces.shop.flavour", '"flavor"?']),
    # shards
    (
        'flavor = "mysql"',
        'flavor = "mysql"\nsharding = { function = "hash" }',
        ["keyspaces.shop.sharding.column: found nothing"],
    ),
    (
        'flavor = "mysql"',
        'flavor = "mysql"\nsharding = { column = "id", function = "modulo" }',
        ["keyspaces.shop.sharding.function: found 'modulo'; expected \"hash\""],
    ),
    ('flavor = "mysql"', 'flavor = "mysql"\nsharding = "id"', ["keyspaces.shop.sharding: found a text"]),
    (
        SHARD,
        SHARD + f'\n[[keyspaces.shop.shards]]\nname = "a"\n{OTHER_SHARD}',
        ["shop.shards: found 2 shards; expected a sharding"],
    ),
    (SHARD, SHARD + "\nserving = 1", ["shards[0].serving: found 1; expected true | false"]),
    (SHARD, SHARD + '\ncontinues = "-"', ["shards[0].continues: found '-'; expected array of text"]),
    # stream and http
    (CACHE, '[stream]\nstart = "then"\n[cache]', ['stream.start: found \'then\'; expected "progress" | "now" (a to']),
    (
        CACHE,
        "[stream]\nstart = 2025-11-21\n[cache]",
        ["stream.start: found a date or time", "invalidator run --since"],
    ),
    (
        CACHE,
        '[stream]\nreplica_choice = "nearest"\n[cache]',
        ['stream.replica_choice: found \'nearest\'; expected "primary" | "freshest" | "slowest"'],
    ),
    (CACHE, "[stream]\nheartbeat_seconds = 0\n[cache]", ["stream.heartbeat_seconds: found 0; expected number from"]),
    (CACHE, '[http]\nlisten = "0.0.0.0:80"\n[cache]', ["http.listen: found '0.0.0.0:80'; expected a loopback"]),
    (CACHE, '[http]\nlisten = "db.example:80"\n[cache]', ["http.listen", "expected a loopback address"]),
    (CACHE, '[http]\nlisten = "127.0.0.1"\n[cache]', ["http.listen: found '127.0.0.1'; expected HOST:PORT; no port"]),
    (CACHE, "[http]\nlisten = 80\n[cache]", ["http.listen: found 80; expected text"]),
    # keyspaces
    ('flavor = "mysql"', "", ['keyspaces.shop.flavor: found nothing; expected "mysql" | "mariadb"']),
    ('flavor = "mysql"', 'flavor = "percona"', ["keyspaces.shop.flavor: found 'percona'"]),
    ("[[keyspaces.shop.shards]]\n" + SHARD, "", ["keyspaces.shop.shards: found nothing; expected one table"]),
    ("[[keyspaces.shop.shards]]", "[keyspaces.shop.shards]", ["keyspaces.shop.shards: found a table"]),
    (SHARD, "", ["keyspaces.shop.shards[0].primary: found nothing; expected a URL"]),
    (SHARD, SHARD + '\nname = "a b"\nlineage = "x"', ["shards[0].name: found 'a b'"]),
    (SHARD, SHARD + '\nlineage = "a b"', ["shards[0].lineage: found 'a b'"]),
    (SHARD, SHARD + '\nreplicas = "x"', ["shards[0].replicas: found a text; expected array of URL"]),
    (SHARD, SHARD + "\nreplicas = [1]", ["shards[0].replicas[0]: found a number; expected"]),
    (SHARD, "primary = {}", ["shards[0].primary: found a table; expected"]),
    (
        SHARD,
        SHARD + '\nreplicas = ["mysql://b@127.0.0.1/shop"]',
        ["replicas[0]: found the server of", "shards[0].primary"],
    ),
    (SHARD, SHARD + '\nreplicas = ["mysql://b@h/shop2"]', ["replicas[0]: found another database than the primary's"]),
    (SHARD, SHARD.replace("mysql:", "mariadb:"), ["primary: found a mariadb:// URL", 'flavor "mysql"']),
    (SHARD, SHARD + '\npassword_file = "none"', ["shards[0].password_file: found the password file", "No such file"]),
    (SHARD, SHARD.replace("/shop", "/shop?password_file=none"), ["primary: found the password file", "No such file"]),
    # objects
    (OBJECT, "", ['objects.customer: found neither; expected either "table"']),
    (OBJECT, OBJECT + '\nkey = "id"\nmembers = {t = "id"}', ["objects.customer: found both"]),
    (
        OBJECT,
        'key = "id"',
        ['objects.customer.members: found nothing; expected "members" (composite) or "table" (one row, or'],
    ),
    (
        OBJECT,
        OBJECT + '\nmembers = {t = "id"}',
        ['objects.customer: found both; expected either "table" (one row, or a list) or "key" and'],
    ),
    (
        OBJECT,
        OBJECT + '\nkey = "email"\nfill_from_log = true',
        ["objects.customer.fill_from_log: found true; expected false beside a key: with unique_checks = 0"],
    ),
    (
        OBJECT,
        OBJECT + '\nkey = "a"\norder_by = "b"',
        ['objects.customer.limit: found nothing; expected "table", "key", "order_by" and "limit" together'],
    ),
    (OBJECT, OBJECT + '\nkey = "a"\nlimit = 3', ["objects.customer.order_by: found nothing"]),
    (OBJECT, OBJECT + '\norder_by = "b"\nlimit = 3', ["objects.customer.key: found nothing"]),
    (OBJECT, 'key = "a"\nmembers = {t = "a"}\norder_by = "b"\nlimit = 3', ["objects.customer.table: found nothing"]),
    (OBJECT, OBJECT + '\nkey = "a"\norder_by = []\nlimit = 3', ["order_by: found an empty array"]),
    (OBJECT, OBJECT + '\nkey = "a"\norder_by = ["b", "b desc"]\nlimit = 3', ["order_by: found a column twice"]),
    (OBJECT, OBJECT + '\nkey = "a"\norder_by = "t.b desc"\nlimit = 3', ["order_by: found 't.b'"]),
    (OBJECT, OBJECT + '\nkey = "a"\norder_by = "b"\nlimit = 0', ["limit: found 0; expected whole number from 1"]),
    (
        OBJECT,
        OBJECT + '\nkey = "a"\norder_by = "b"\nlimit = 3\nfill_from_log = true',
        ["objects.customer.fill_from_log: found true; expected false for a list: no log has its value"],
    ),
    (OBJECT, OBJECT + "\nkey = []", ["objects.customer.key: found an empty array"]),
    (OBJECT, OBJECT + '\nkey = ["a", "a"]', ["objects.customer.key: found a column twice"]),
    (
        OBJECT,
        'key = "id"\nmembers = {t = "id"}\nfill_from_log = true',
        ["objects.customer.fill_from_log: found true; expected false for a composite"],
    ),
    (OBJECT, OBJECT + "\nfill_from_log = 1", ["objects.customer.fill_from_log: found 1; expected true | false"]),
    (OBJECT, 'members = {t = "id"}', ["objects.customer.key: found nothing"]),
    (OBJECT, 'key = "id"\nmembers = {}', ["objects.customer.members: found an empty table"]),
    (OBJECT, 'key = "id"\nmembers = {t = 1}', ["objects.customer.members: found a table; expected table of text"]),
    (OBJECT, 'key = "id"\nmembers = {"shop.t" = "id"}', ["objects.customer.members.shop.t: found 'shop.t'"]),
    (
        OBJECT,
        'key = "id"\nmembers = {lines = "orders.customer_id"}',
        ["members.lines: found 'orders.customer_id'; expected a column of lines itself", "#two-joins-away"],
    ),
    (OBJECT, 'key = "id"\nmembers = {t = ""}', ["objects.customer.members.t: found ''"]),
    (OBJECT, 'key = ["a", 1]\nmembers = {t = "id"}', ["key: found an array; expected text or array of text"]),
    (OBJECT, 'key = ["a", "b.c"]\nmembers = {t = ["a", "b"]}', ["objects.customer.key: found 'b.c'"]),
    (OBJECT, 'key = ["a", "b"]\nmembers = {t = ["a", "b/c"]}', ["members.t: found 'b/c'"]),
    (OBJECT, "key = []\nmembers = {t = []}", ["objects.customer.key: found an empty array"]),
    (OBJECT, 'key = ["a", "a"]\nmembers = {t = ["a", "b"]}', ["objects.customer.key: found a column twice"]),
    (OBJECT, 'key = ["a", "b"]\nmembers = {t = ["a", "a"]}', ["members.t: found a column twice"]),
    (
        OBJECT,
        'key = ["a", "b"]\nmembers = {t = ["b", "c"], u = "a"}',
        ["customer.members.u: found a; expected a column for each of the key's, in their order: a, b"],
    ),
    (OBJECT, 'key = ["a", "b"]\nmembers = {t = []}', ["members.t: found an empty array; expected a column for"]),
    (OBJECT, 'key = "a"\nmembers = {t = ["a", "b"]}', ["members.t: found a, b; expected a column for each of"]),
    (
        OBJECT,
        'table = "shop.customers"',
        ["objects.customer.table: found 'shop.customers'", "without dots, backticks", "rename such a table"],
    ),
    (OBJECT, "table = 1", ["objects.customer.table: found 1; expected text"]),
    (OBJECT, OBJECT + '\nkeyspace = "stock"', ["objects.customer.keyspace: found 'stock'; expected one of shop"]),
    ("[objects.customer]", '[objects."a b"]', ["objects.a b: found 'a b'; expected a name of 1 to 60"]),
    (
        "[objects.customer]\n" + OBJECT,
        "[objects]\ncustomer = 1",
        ["objects.customer: found a number; expected a table"],
    ),
]


@pytest.mark.parametrize(("old", "new", "says"), REFUSED)
def test_one_mistake_is_one_problem_that_says_where_and_what(load: Load, old: str, new: str, says: list[str]) -> None:
    assert MINIMAL.count(old) == 1, "the case must change one place"
    (problem,) = _problems(load, MINIMAL.replace(old, new))
    for words in says:
        assert words in problem
    assert "hunter2" not in problem


@pytest.mark.parametrize(
    ("section", "key"),
    [
        *(("archive", "path"), ("history", "path"), ("http", "listen"), ("http", "token_file")),
        *(("objects.thing", "table"), ("keyspaces.shop.sharding", "column")),
    ],
)
def test_no_text_is_empty(section: str, key: str, load: Load) -> None:
    """An empty path would be the folder of the file."""
    for text in ("", " "):
        problems = _problems(load, f'{MINIMAL}[{section}]\n{key} = "{text}"\n')
        assert any(
            f"{section}.{key}: found {text!r}; expected text that is not empty" in problem for problem in problems
        ), problems


def test_all_problems_are_in_one_report(load: Load) -> None:
    text = MINIMAL.replace("[cache]", "[cache]\nlease_seconds = 0\nxyz = 1").replace("app@", "${WHO}@")
    problems = _problems(load, text + "[stream]\nbatch_transactions_max = -1\n")
    places = [problem.partition(": found")[0] for problem in problems]
    assert places == [
        "cache.xyz",
        "cache.lease_seconds",
        "keyspaces.shop.shards[0].primary",
        "stream.batch_transactions_max",
    ]


SHARDED = MINIMAL.replace("[[", 'sharding = { column = "customer_id", function = "hash" }\n[[', 1).partition("[[")[0]


def _sharded(*names: str, waiting: str = "") -> str:
    """A keyspace with these serving shards, and perhaps one that does not serve yet."""
    shards = [
        f'[[keyspaces.shop.shards]]\nname = "{name}"\nprimary = "mysql://a@h{name}:3306/shop"\n' for name in names
    ]
    if waiting:
        shards.append(
            f'[[keyspaces.shop.shards]]\nname = "{waiting}"\nserving = false\nprimary = "mysql://a@w:3306/shop"\n'
        )
    return SHARDED + "".join(shards)


def test_the_shards_of_a_keyspace(load: Load) -> None:
    keyspace = load(_sharded("-80", "80-", waiting="-40")).keyspaces["shop"]
    assert keyspace.sharding is not None
    assert (keyspace.sharding.column, keyspace.sharding.function) == ("customer_id", "hash")
    assert [shard.name for shard in keyspace.shards] == ["-80", "80-", "-40"]
    assert [shard.name for shard in keyspace.serving_shards] == ["-80", "80-"]
    assert load(_sharded("0")).keyspaces["shop"].shards[0].name == "0"


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("-80",), "found serving shards up to 80"),
        (("80-",), "found the serving shard 80-; expected one that starts at"),
        (("-80", "c0-"), "found the serving shard c0-; expected one that starts at 80"),
        (("-80", "40-"), "found the serving shard 40-; expected one that starts at 80"),
        (("-", "80-"), "found the serving shard 80-; expected none after it"),
        (("-80", "80-", "80-"), "shards[2].lineage: found"),
        (("left", "right"), "found 'left'; expected a key range"),
        ((), "found nothing"),
    ],
)
def test_serving_shards_hold_every_key_once(load: Load, names: tuple[str, ...], says: str) -> None:
    text = _sharded(*names) if names else SHARDED + "shards = []\n"
    assert any(says in problem for problem in _problems(load, text)), _problems(load, text)


def test_shards_that_only_wait_hold_nothing(load: Load) -> None:
    (problem,) = _problems(load, _sharded(waiting="-"))
    assert problem.startswith("keyspaces.shop.shards: found no serving shard")


def test_two_shards_never_share_a_lineage(load: Load) -> None:
    text = _sharded("-80", "80-").replace('name = "', 'lineage = "one"\nname = "')
    (problem,) = _problems(load, text)
    assert "shards[1].lineage: found 'one'; expected one of its own" in problem


def test_missing_sections_are_named(load: Load) -> None:
    assert _problems(load, "") == [
        "cache: found nothing; expected a section [cache]",
        "keyspaces: found nothing; expected a section [keyspaces]",
    ]
    assert _problems(load, MINIMAL.partition("[keyspaces")[0] + "[keyspaces]\n") == [
        "keyspaces: found none; expected at least one [keyspaces.NAME]"
    ]
    assert _problems(load, "cache = 1\nkeyspaces = 2\nstream = 3\nobjects = 4\nhttp = 5\n") == [
        f"{name}: found a number; expected a section [{name}]"
        for name in ("cache", "keyspaces", "objects", "stream", "http")
    ]


def test_an_object_without_keyspace_is_ambiguous_among_several(load: Load) -> None:
    text = MINIMAL + '[keyspaces.stock]\nflavor = "mysql"\n[[keyspaces.stock.shards]]\n' + SHARD
    (problem,) = _problems(load, text)
    assert problem == "objects.customer.keyspace: found nothing; expected one of shop, stock"


def test_files_that_cannot_be_read(tmp_path: Path, load: Load) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: there is no such file .*--config PATH"):
        load_config(tmp_path / "none.toml", {})
    with pytest.raises(ConfigError, match=re.escape(f"{Path.cwd() / 'none.toml'}: there")):
        load_config(Path("none.toml"), {})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path, {})
    with pytest.raises(ConfigError, match=r"not valid TOML: .*line 3, column"):
        load("[cache]\n\nnodes = [oops]\n")
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match="byte 5 is not UTF-8"):
        load_config(tmp_path / "latin.toml", {})
    (tmp_path / "marked.toml").write_bytes(b"\xef\xbb\xbf[cache]\n")
    with pytest.raises(ConfigError, match="namespace"):  # an editor's byte-order mark is not TOML's affair
        load_config(tmp_path / "marked.toml", {})


# -- server addresses and passwords -------------------------------------------------------------------

ADDRESSES: list[tuple[str, ServerAddress]] = [
    ("mysql://app@db/shop", ServerAddress("db", 3306, "app", "", "shop")),
    ("mariadb://app:pw@db.example:3307/shop", ServerAddress("db.example", 3307, "app", "pw", "shop")),
    ("mysql://app:a%40b%2Fc%3A%25@db/my%20shop", ServerAddress("db", 3306, "app", "a@b/c:%", "my shop")),
    ("mysql://app:a:b@db/shop", ServerAddress("db", 3306, "app", "a:b", "shop")),
    ("mysql://app@[2001:db8::1]:3307/shop", ServerAddress("2001:db8::1", 3307, "app", "", "shop")),
    ("mysql://app@[::1]/shop", ServerAddress("::1", 3306, "app", "", "shop")),
    ("mysql://${WHO}:${PASS}@${HOST}/${WHERE}", ServerAddress("db", 3306, "app", "p@%41/${HOST}#", "shop")),
    ("mysql://app:x${PASS}y@db/shop", ServerAddress("db", 3306, "app", "xp@%41/${HOST}#y", "shop")),
    ("${URL}", ServerAddress("db", 3306, "app", "${NONE}@", "shop")),
    ("mysql://app@db/shop?tls=true", ServerAddress("db", 3306, "app", "", "shop", Tls())),
    ("mysql://app@db/shop?tls=false", ServerAddress("db", 3306, "app", "", "shop", False)),
]
ENVIRON = {
    "WHO": "app",
    "PASS": "p@%41/${HOST}#",
    "HOST": "db",
    "WHERE": "shop",
    "URL": "mysql://app:${NONE}%40@db/shop",
}


@pytest.mark.parametrize(("url", "expected"), ADDRESSES)
def test_a_url_becomes_an_address(url: str, expected: ServerAddress, tmp_path: Path) -> None:
    assert ServerAddress.parse(url, ENVIRON, tmp_path) == expected


def test_files_of_a_url_are_relative_to_the_configuration(tmp_path: Path) -> None:
    for name in ("secret", "ca", "cert", "key"):
        (tmp_path / name).write_text(f"from {name}\r\nsecond line\n")
    url = "mysql://app@db/shop?password_file=secret&tls_ca=${CA}&tls_cert=cert&tls_key=key"
    tls = Tls(tmp_path / "ca", tmp_path / "cert", tmp_path / "key")
    address = ServerAddress.parse(url, {"CA": "ca"}, tmp_path)
    assert address == ServerAddress("db", 3306, "app", PasswordFile(tmp_path / "secret"), "shop", tls)


def test_files_are_read_again_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret").symlink_to("first")
    for name in ("first", "second", "ca"):
        Path(name).write_text(f"{name}\n")
    address = ServerAddress.parse("mysql://app@db/shop?password_file=secret&tls_ca=ca", {}, Path())
    assert address.tls == Tls(tmp_path / "ca")
    monkeypatch.chdir("/")
    assert find_password(address.password, "", "", 0) == "first"
    (tmp_path / "secret").unlink()
    (tmp_path / "secret").symlink_to("second")
    assert find_password(address.password, "", "", 0) == "second"


def test_a_password_of_the_own_environment_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASS", "p%41@")
    address = ServerAddress.parse("mysql://app:x%40${PASS}@db/shop", os.environ, tmp_path)
    assert address.password == PasswordVariable(("x@", "PASS", ""))
    assert find_password(address.password, "", "", 0) == "x@p%41@"


SECRET = "hunter2"
BAD_URLS: list[tuple[str, str]] = [
    ("app:hunter2@db/shop", "not a mysql:// or mariadb:// URL"),
    ("postgres://app:hunter2@db/shop", "not a mysql:// or mariadb:// URL"),
    ("mysql:app:hunter2@db/shop", "not a mysql:// or mariadb:// URL"),
    ("hunter2://db/shop", "not a mysql:// or mariadb:// URL"),
    ("mysql://app:hunter2", "names no user"),
    ("mysql://:hunter2@db/shop", "names no user"),
    ("mysql://app:hunter2/x@db/shop", "percent-encode it"),
    ("mysql://app:x?hunter2@db/shop", "percent-encode it"),
    ("mysql://app:x#hunter2@db/shop", "percent-encode it"),
    ("mysql://app:x@hunter2@db/shop", "percent-encode it"),
    ("mysql://app:hunter2@db/shop#hunter2", "percent-encode it"),
    ("mysql://app:hunter2 @db/shop", "blank or a control character"),
    ("mysql://app:hunter2\n@db/shop", "blank or a control character"),
    ("mysql://app:hunter2%ff@db/shop", "not UTF-8"),
    ("mysql://app:hunter2@/shop", "the host is empty"),
    ("mysql://app:hunter2@db:x/shop", "no port"),
    ("mysql://app:hunter2@db:70000/shop", "port 70000"),
    ("mysql://app:hunter2@::1/shop", "belongs in brackets"),
    ("mysql://app:hunter2@db", "names no database"),
    ("mysql://app:hunter2@db/", "names no database"),
    ("mysql://app:hunter2@db/shop/x", "names no database"),
    ("mysql://app:hunter2@db/shop?ssl=hunter2", 'unknown option "ssl"'),
    ("mysql://app:hunter2@db/shop?password_file=secret", "a password and a password_file"),
    ("mysql://app:hunter2@db/shop?tls=hunter2", "tls is neither true nor false"),
    ("mysql://app:hunter2@db/shop?tls_ca=a&tls_ca=b", "the option tls_ca twice"),
    ("mysql://app:hunter2@db/shop?tls=false&tls_ca=secret", "tls is false, and certificates are named"),
    ("mysql://app:hunter2@db/shop?tls_cert=secret", "needs both tls_cert and tls_key"),
    ("mysql://app:hunter2@db/shop?tls_ca=none", "tls_ca: the file"),
    ("mysql://app@db/shop?password_file=empty", "is empty"),
    ("mysql://app@db/shop?password_file=none", "cannot be read: No such file"),
    ("mysql://app@db/shop?password_file=binary", "not UTF-8 text"),
    ("mysql://app:${NOPE}:hunter2@${ALSO_NOT}/shop", "environment variable not set: ALSO_NOT, NOPE"),
    ("${NOPE}", "environment variable not set: NOPE"),
    ("${BAD_URL}", "percent-encode it"),
]


@pytest.mark.parametrize(("url", "says"), BAD_URLS)
def test_a_bad_url_is_refused_without_its_password(url: str, says: str, tmp_path: Path, load: Load) -> None:
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "empty").write_text(f"\n{SECRET}\n")
    (tmp_path / "binary").write_bytes(b"\xff" + SECRET.encode())
    environ = {"BAD_URL": f"mysql://app:x/{SECRET}@db/shop"}
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        ServerAddress.parse(url, environ, tmp_path)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None, "a chained error would show the bytes"
    quoted = url.replace("\n", "\\n")
    (problem,) = _problems(load, MINIMAL.replace(SHARD, f'primary = "{quoted}"'), **environ)
    assert problem.startswith("keyspaces.shop.shards[0].primary: found ")
    assert says in problem
    assert SECRET not in problem


def test_a_password_is_shown_nowhere(load: Load) -> None:
    config = load(MINIMAL.replace("app@", "app:hunter2@"))
    (shard,) = config.keyspaces["shop"].shards
    assert shard.primary.password == SECRET
    assert str(shard.primary) == "app@127.0.0.1:3306/shop"
    assert SECRET not in f"{config} {config!r} {shard.primary!r} {shard.primary}"
    assert str(ServerAddress("::1", 3306, "app", SECRET, "shop")) == "app@[::1]:3306/shop"


def test_misplaced_passwords_are_not_repeated(load: Load) -> None:
    text = MINIMAL.replace(SHARD, f'{SHARD}\npassword = "hunter2"\nreplicas = "mysql://a:hunter2@db/shop"')
    text = text.replace('flavor = "mysql"', 'flavor = "mysql://app:hunter2@db/shop"')
    problems = _problems(load, text)
    assert len(problems) == 3
    assert any('did you mean "password_file"?' in problem for problem in problems)
    assert SECRET not in "".join(problems)


def test_the_password_file_of_a_shard_is_for_servers_without_a_password(load: Load, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from file\n")
    servers = f'{SHARD}\nreplicas = ["mysql://app:own@db/shop", "mysql://app@other/shop"]\n'
    (shard,) = load(MINIMAL.replace(SHARD, servers + 'password_file = "secret"')).keyspaces["shop"].shards
    of_file = PasswordFile(tmp_path / "secret")
    assert shard.primary.password == of_file
    assert [replica.password for replica in shard.replicas] == ["own", of_file]


def test_the_password_command_of_a_shard_is_not_run_here(load: Load) -> None:
    command = 'password_command = ["/nowhere/program", "{host}"]'
    (shard,) = load(MINIMAL.replace(SHARD, f"{SHARD}\n{command}")).keyspaces["shop"].shards
    assert shard.primary.password == PasswordCommand(("/nowhere/program", "{host}"))


# -- the login of cache nodes -------------------------------------------------------------------------

LOGIN = 'username = "cache"\npassword = "hunter2"\n'


def with_cache(text: str) -> str:
    return MINIMAL.replace("[cache]\n", f"[cache]\n{text}\n")


def test_the_login_of_the_nodes(load: Load, tmp_path: Path) -> None:
    assert load(MINIMAL).cache.access == NodeAccess("memcached", NodeLogin())
    for name in ("secret", "ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).write_text("x\n")
    text = 'username = "cache"\npassword_file = "secret"\ntls_ca = "ca.pem"\n'
    text += 'tls_cert = "cert.pem"\ntls_key = "key.pem"\nbackend = "redis"'
    tls = Tls(tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem")
    login = NodeLogin("cache", PasswordFile(tmp_path / "secret"), tls)
    assert load(with_cache(text)).cache.access == NodeAccess("redis", login)
    assert load(with_cache(f"{LOGIN}tls = true")).cache.login == NodeLogin("cache", "hunter2", Tls())
    assert load(with_cache("tls = false")).cache.login == NodeLogin()
    variable = LOGIN.replace("hunter2", "${PASS}")
    assert load(with_cache(variable), PASS="a b%41").cache.login.password == "a b%41"
    command = 'username = "cache"\npassword_command = ["show", "{host}"]'
    assert load(with_cache(command)).cache.login.password == PasswordCommand(("show", "{host}"))
    alone = 'backend = "redis"\npassword = "hunter2"'
    assert load(with_cache(alone)).cache.login == NodeLogin("", "hunter2")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('username = "cache"', "cache.username: found a user without a password"),
        ('password = "hunter2"', "cache.username: found nothing; expected the user"),
        ('username = "hunter2 x"\npassword = "x"', "cache.username: found a blank or a colon"),
        ('username = "c"\npassword = 4711', "cache.password: found a number; expected text"),
        ('username = "c"\npassword = "${NOPE}"', "cache.password: found environment variable not set: NOPE"),
        ('username = "c"\npassword = "${EMPTY}"', "cache.password: found an empty text"),
        ('username = "c"\npassword_command = "echo hunter2"', "cache.password_command: found a text; expected array"),
        ('username = "c"\npassword_command = []', "cache.password_command: found an empty array"),
        ('username = "c"\npassword_file = "none"', "cache.password_file: found the password file"),
        (f'{LOGIN}password_file = "hunter2"', "cache.password_file: found a password beside it"),
        ('tls = "yes"', "cache.tls: found 'yes'; expected true | false"),
        ('tls = false\ntls_ca = "freshness.toml"', "cache.tls: found tls is false, and certificates are named"),
        ('tls_key = "freshness.toml"', "cache.tls: found a client certificate needs both"),
        ('tls_ca = "none.pem"', "cache.tls: found tls_ca: the file"),
        ('backend = "memory"\ntls = true', 'cache.tls: found a setting; expected none with backend "memory"'),
        ('tls_cart = "x"', 'cache.tls_cart: found an unknown key; expected a known one; did you mean "tls_'),
        ('pasword = "hunter2"', 'cache.pasword: found an unknown key; expected a known one; did you mean "password"'),
    ],
)
def test_a_wrong_login_of_the_nodes_is_refused_without_its_password(load: Load, text: str, says: str) -> None:
    (problem,) = _problems(load, with_cache(text), EMPTY="")
    assert problem.startswith(says)
    assert SECRET not in problem
    assert "4711" not in problem


def test_a_password_of_the_nodes_is_shown_nowhere(load: Load) -> None:
    config = load(with_cache(LOGIN))
    assert config.cache.login.password == SECRET
    assert SECRET not in f"{config} {config!r} {config.cache.access!r}"


# -- the settings as data -----------------------------------------------------------------------------


TWO_ACCOUNTS = MINIMAL.replace(
    'primary = "mysql://app@127.0.0.1:3306/shop"',
    'primary = "mysql://invalidator:${SECRET}@127.0.0.1:3306/shop"\n'
    'primary_for_reads = "mysql://webapp:${WEB_SECRET}@db.example:3306/shop"\n'
    'replicas = ["mysql://webapp:${WEB_SECRET}@127.0.0.1:3307/shop"]',
)


def test_each_program_needs_only_the_passwords_of_its_own_accounts(tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    path.write_text(TWO_ACCOUNTS)
    application = load_config(path, {"WEB_SECRET": "w"}, is_application=True).keyspaces["shop"].shards[0]
    assert application.primary == ServerAddress("db.example", 3306, "webapp", "w", "shop")
    with pytest.raises(ConfigError, match=r"shards\[0\]\.primary_for_reads.*WEB_SECRET"):
        load_config(path, {"SECRET": "i"}, is_application=True)
    both = {"SECRET": "i", "WEB_SECRET": "w"}
    invalidator = load_config(path, both).keyspaces["shop"].shards[0]
    assert invalidator.primary == ServerAddress("127.0.0.1", 3306, "invalidator", "i", "shop")
    with pytest.raises(ConfigError, match=r"shards\[0\]\.primary: found environment variable not set: SECRET"):
        load_config(path, {"WEB_SECRET": "w"})


def test_a_variable_that_is_missing_is_told_of_each_account_that_has_it(tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    path.write_text(TWO_ACCOUNTS)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {"SECRET": "i"})
    for place in ("primary_for_reads", "replicas[0]"):
        assert f"shards[0].{place}: found environment variable not set: WEB_SECRET" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {})
    assert str(caught.value).count("environment variable not set") == 3


@pytest.mark.parametrize(
    "primary", ["${PRIMARY_URL}", "mysql://invalidator@127.0.0.1:3306/shop?password_file=secrets/none"]
)
def test_an_application_needs_nothing_else_of_the_invalidators_account(tmp_path: Path, primary: str) -> None:
    path = tmp_path / "freshness.toml"
    path.write_text(TWO_ACCOUNTS.replace("mysql://invalidator:${SECRET}@127.0.0.1:3306/shop", primary))
    config = load_config(path, {"WEB_SECRET": "w"}, is_application=True)
    assert config.keyspaces["shop"].shards[0].primary.user == "webapp"


def test_both_accounts_of_the_primary_name_one_database(tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    path.write_text(TWO_ACCOUNTS.replace("127.0.0.1:3306/shop", "127.0.0.1:3306/shap"))
    with pytest.raises(ConfigError, match=r"shards\[0\]\.primary: found another database"):
        load_config(path, {"WEB_SECRET": "w"}, is_application=True)
    with pytest.raises(ConfigError, match="another database"):
        load_config(path, {"SECRET": "i", "WEB_SECRET": "w"})


def test_an_account_of_the_other_program_is_an_address_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    path.write_text(TWO_ACCOUNTS.replace('"mysql://invalidator:${SECRET}@127.0.0.1:3306/shop"', "7"))
    with pytest.raises(ConfigError, match=r"shards\[0\]\.primary: found a number"):
        load_config(path, {"WEB_SECRET": "w"}, is_application=True)


def test_settings_describe_every_key_with_its_type_and_default() -> None:
    settings = {setting.key: setting for setting in describe_settings()}
    assert len(settings) == len(describe_settings())
    assert all(setting.meaning.endswith(".") for setting in settings.values())
    assert settings["cache.lease_seconds"][1:3] == ("whole number", "3")
    assert settings["cache.max_staleness_seconds"][1:3] == ("number", "10.0")
    assert settings["cache.backend"][1:3] == ('"memcached" | "redis" | "memory"', '"memcached"')
    assert settings["cache.nodes"][1:3] == ("array of text", "required")
    assert settings["keyspaces.NAME.shards.primary"][1:3] == ("URL", "required")
    assert settings["keyspaces.NAME.shards.replicas"][1:3] == ("array of URL", "[]")
    assert settings["keyspaces.NAME.shards.lineage"][1:3] == ("text", "KEYSPACE/SHARD")
    assert settings["objects.NAME.members"][1:3] == ("table of text or array of text", "{}")
    assert settings["http.listen"][1:3] == ("text", "none")


def test_every_key_of_the_example_is_described() -> None:
    described = {setting.key for setting in describe_settings()}
    section, keys = "", set()
    for line in EXAMPLE.splitlines():
        if match := re.match(r"\[+(\w+)(?:\.\w+)?(\.shards)?\]", line):
            named = ".NAME" if match[1] in ("keyspaces", "objects") else ""
            section = match[1] + named + (match[2] or "")
        elif match := re.match(r"(\w+) = ", line):
            keys.add(f"{section}.{match[1]}")
    assert len(keys) > 15
    assert keys <= described


VITESS = """
[cache]
nodes = ["127.0.0.1:11211"]
namespace = "shop"
[keyspaces.shop]
flavor = "vitess"
sharding = { column = "customer_id", function = "xxhash" }
[[keyspaces.shop.shards]]
name = "-80"
primary = "mysql://app:hunter2@vtgate:15306/commerce"
vtgate = "vitess://app:hunter2@vtgate:15991/commerce?tablet_type=rdonly"
[[keyspaces.shop.shards]]
name = "80-"
primary = "mysql://app:hunter2@vtgate:15306/commerce"
vtgate = "vitess://app:hunter2@vtgate:15991/commerce?tablet_type=rdonly"
"""


def test_a_keyspace_of_vitess(load: Load) -> None:
    keyspace = load(VITESS).keyspaces["shop"]
    assert (keyspace.flavor, keyspace.gtid_flavor) == ("vitess", "mysql")
    one, two = keyspace.shards
    assert one.vtgate == two.vtgate
    assert one.vtgate is not None
    assert (one.vtgate.target, one.vtgate.keyspace, one.vtgate.tablet_type) == ("vtgate:15991", "commerce", "rdonly")
    assert (one.primary.database, one.writable.database) == ("commerce", "commerce:-80@primary")
    assert two.writable.database == "commerce:80-@primary"
    assert (one.writable.host, one.writable.port) == ("vtgate", 15306)


def test_without_vitess_heartbeats_go_to_the_primary_itself(load: Load) -> None:
    keyspace = load(MINIMAL).keyspaces["shop"]
    assert keyspace.gtid_flavor == keyspace.flavor == "mysql"
    assert keyspace.shards[0].writable == keyspace.shards[0].primary


_TWO = 'name = "80-"\nprimary = "mysql://app:hunter2@vtgate:15306/commerce"\n'
_GATE = 'vtgate = "vitess://app:hunter2@vtgate:15991/commerce?tablet_type=rdonly"\n'


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (_TWO + _GATE, _TWO, 'shards[1].vtgate: found nothing; expected "vitess://'),
        (_TWO + _GATE, _TWO + "vtgate = 1\n", "shards[1].vtgate: found a number"),
        (_TWO + _GATE, _TWO + _GATE.replace("rdonly", "copy"), "shards[1].vtgate: found tablet_type is 'copy'"),
        (_TWO + _GATE, _TWO + _GATE.replace("vitess:", "mysql:"), "shards[1].vtgate: found the URL does not name"),
        (_TWO + _GATE, _TWO + _GATE.replace("commerce", "other"), "primary: found another database; expected /other"),
        (
            _TWO + _GATE,
            _TWO + _GATE + 'replicas = ["mysql://app@b:1/commerce"]\n',
            "replicas: found servers; expected none with flavor vitess",
        ),
        (_TWO + _GATE, _TWO + _GATE + "adopt_promotions = true\n", "shards[1].adopt_promotions: found flavor vitess"),
        (
            _TWO + _GATE,
            _TWO.replace("mysql:", "mariadb:") + _GATE,
            'shards[1].primary: found a mariadb:// URL; expected mysql:// in a keyspace of flavor "vitess"',
        ),
    ],
)
def test_mistakes_in_a_keyspace_of_vitess(load: Load, old: str, new: str, says: str) -> None:
    assert VITESS.count(old) == 1, "the case must change one place"
    (problem,) = _problems(load, VITESS.replace(old, new))
    assert says in problem
    assert "hunter2" not in problem


def test_a_promotion_needs_a_replica(load: Load) -> None:
    adopting = "adopt_promotions = true\n[objects.customer]"
    (problem,) = _problems(load, MINIMAL.replace("[objects.customer]", adopting))
    assert "shards[0].adopt_promotions: found no replicas" in problem


def test_only_vitess_has_a_vtgate(load: Load) -> None:
    (problem,) = _problems(
        load, MINIMAL.replace("[objects.customer]", 'vtgate = "vitess://h/shop"\n[objects.customer]')
    )
    assert 'shards[0].vtgate: found a vtgate in a keyspace of flavor "mysql"' in problem


GTID = "3E11FA47-71CA-11E1-9E33-C80AA9429562:23"
SKIP = f"""
[[keyspaces.shop.shards.skip]]
gtid = "{GTID}"
reason = "it is damaged"
"""


def test_transactions_of_a_shard_that_are_skipped(load: Load) -> None:
    second = SKIP.replace(":23", ":24") + 'tables = ["customers"]\n'
    (shard,) = load(MINIMAL + SKIP + second).keyspaces["shop"].shards
    assert shard.skip == (
        SkippedTransaction(gtid=GTID, reason="it is damaged"),
        SkippedTransaction(gtid=GTID.replace(":23", ":24"), tables=("customers",), reason="it is damaged"),
    )
    mariadb = MINIMAL.replace('"mysql"', '"mariadb"') + SKIP.replace(GTID, "0-1-100")
    assert load(mariadb).keyspaces["shop"].shards[0].skip[0].gtid == "0-1-100"
    assert load(MINIMAL).keyspaces["shop"].shards[0].skip == ()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (GTID, GTID + "-24", "skip[0].gtid: found '3E11FA47-71CA-11E1-9E33-C80AA9429562:23-24'; expected one GTID"),
        (GTID, "0-1-100", "skip[0].gtid: found '0-1-100'; expected one GTID"),
        (f'gtid = "{GTID}"', "", "skip[0].gtid: found nothing; expected text"),
        ('reason = "it is damaged"', "", "skip[0].reason: found nothing; expected text"),
        ('reason = "it is damaged"', 'reason = " "', "skip[0].reason: found ' '; expected text that is not empty"),
        ("[[keyspaces.shop.shards.skip]]", "[keyspaces.shop.shards.skip]", "skip: found a table; expected one table"),
        (
            "reason",
            'table = "a"\nreason',
            'skip[0].table: found an unknown key; expected a known one; did you mean "tab',
        ),
        (
            "reason",
            'tables = ["customer"]\nreason',
            f"skip.tables: found 'customer' for {GTID}; expected cached tables of the keyspace, customers; or none",
        ),
        (
            "[[",
            f'[[keyspaces.shop.shards.skip]]\ngtid = "{GTID.lower()}"\nreason = "the same"\n[[',
            f"skip[1].gtid: found '{GTID}'; expected each transaction once",
        ),
    ],
)
def test_mistakes_in_what_is_skipped(load: Load, old: str, new: str, says: str) -> None:
    assert SKIP.count(old) == 1, "the case must change one place"
    (problem,) = _problems(load, MINIMAL + SKIP.replace(old, new))
    assert says in problem


def test_no_transaction_of_vitess_is_skipped(load: Load) -> None:
    (problem,) = _problems(load, VITESS + SKIP)
    assert 'shards[1].skip: found transactions; expected none with flavor "vitess"' in problem


def test_sections_given_instead_are_held_to_the_same_rules(load: Load, tmp_path: Path) -> None:
    load(MINIMAL)
    path = tmp_path / "freshness.toml"
    shard = {"name": "-", "primary": "mysql://app@10.0.0.1:3306/shop"}
    config = load_config(path, {}, instead={"keyspaces": {"shop": {"flavor": "mysql", "shards": [shard]}}})
    assert config.keyspaces["shop"].shards[0].primary.host == "10.0.0.1"
    assert config.cache.namespace == "shop"
    with pytest.raises(ConfigError, match=r"keyspaces\.shop\.flavor: found nothing"):
        load_config(path, {}, instead={"keyspaces": {"shop": {"shards": [shard]}}})


def test_the_zone_of_an_application_is_of_its_environment(tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    text = MINIMAL.replace("[cache]\n", '[cache]\nzone = "${PLACE}"\n', 1)
    assert text != MINIMAL
    path.write_text(text.replace('/shop"', '/shop?zone=${OTHER}"', 1))
    config = load_config(path, {"PLACE": "east", "OTHER": "west"}, is_application=True)
    assert config.cache.zone == "east"
    assert config.keyspaces["shop"].shards[0].primary.zone == "west"
    assert load_config(path, {"OTHER": "west"}).cache.zone == "${PLACE}", "no other program needs the variable"
    with pytest.raises(ConfigError, match=r"cache\.zone.*PLACE"):
        load_config(path, {"OTHER": "west"}, is_application=True)
