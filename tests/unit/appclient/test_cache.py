"""Which connections to the nodes a cache uses: one set for each read of a process, opened when needed and kept."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appclient import Cache
from appclient.database.shard import ShardDatabase
from appclient.reading.loader import ObjectLoader
from appclient.reading.lookup import AGAIN_SECONDS
from freshness.algorithm.envelope import Coverage
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.request import LATEST, Get, Reply, Request
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.state import NO_DEMAND, Read
from freshness.config.access import NodeAccess
from freshness.config.config import load_config
from freshness.errors import ConfigError, FormatError, NodeUnavailable, SourceUnavailable
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.position import empty_position
from freshness.position.token import EventToken

CONFIG = """[cache]
nodes = ["127.0.0.1:21"]
namespace = "shop"
[keyspaces.shop]
flavor = "mysql"
[[keyspaces.shop.shards]]
primary = "mysql://app@127.0.0.1:1/shop"
[objects.customer]
table = "customers"
"""


class Node:
    """A node in memory that counts how often it is closed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closings = 0
        inner = MemoryNode(MemoryStore(name, clock=lambda: 1000.0))
        self.send, self.receive, self.perform = inner.send, inner.receive, inner.perform
        self.connect, self.find, self.is_connected = inner.connect, inner.find, True

    def close(self) -> None:
        self.closings += 1


class Nodes(list[Node]):
    """All that were opened."""

    def open(self, _: NodeAccess, name: str) -> Node:
        self.append(Node(name))
        return self[-1]

    @property
    def closings(self) -> list[int]:
        return [node.closings for node in self]


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def cache(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Of a database in which no customer exists."""
    schema: list[Any] = [(KeyColumn("id", ColumnKind.INTEGER),)]
    monkeypatch.setattr(ShardDatabase, "run", lambda *_: schema.pop() if schema else ([], None))
    path = tmp_path / "freshness.toml"
    path.write_text(CONFIG)
    return Cache(load_config(path, {}), open_node=nodes.open)


def test_connections_are_opened_when_needed_and_used_again(cache: Cache, nodes: Nodes) -> None:
    assert nodes == []
    assert [cache.get("customer", 1), cache.get_many("customer", [1, 2])] == [None, {1: None, 2: None}]
    assert nodes.closings == [0]
    cache.close()
    cache.close()
    assert nodes.closings == [1]
    assert cache.get("customer", 1) is None
    assert nodes.closings == [1, 0]


@pytest.mark.parametrize("backend", ["memcached", "redis"])
def test_the_client_of_the_nodes_is_imported_before_the_first_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """A request does not wait for it, nor is it the first to learn that the package is missing."""
    monkeypatch.setattr(ShardDatabase, "run", lambda *_: [KeyColumn("id", ColumnKind.INTEGER)])
    path = tmp_path / "freshness.toml"
    path.write_text(CONFIG.replace("[cache]", f'[cache]\nbackend = "{backend}"'))
    monkeypatch.setitem(sys.modules, f"freshness.nodes.{backend}", None)
    with pytest.raises(ModuleNotFoundError):
        Cache(load_config(path, {}))


def test_a_missing_client_of_the_nodes_is_an_error_that_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "freshness.toml"
    path.write_text(CONFIG.replace("[cache]", '[cache]\nbackend = "redis"'))
    monkeypatch.delitem(sys.modules, "freshness.nodes.redis", raising=False)
    for name in [each for each in sys.modules if each.partition(".")[0] == "redis"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"redis is not installed.*freshness\[redis\]"):
        Cache(load_config(path, {}))


class ClosedWhileIdle(Node):
    """Its server closes the connection when ``is_connected`` is set to False; the next one is a new one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        inner, self.asked = self.perform, list[Request]()

        def perform(requests: Sequence[Request]) -> list[Reply]:
            if not self.is_connected:
                self.close()
                raise NodeUnavailable(f"{name} broke the connection")
            self.asked += requests
            return inner(requests)

        self.perform = perform

    @property
    def has_read_records(self) -> bool:
        """Since the last question."""
        asked, self.asked[:] = [*self.asked], []
        return any(isinstance(request, Get) and request.is_bound for request in asked)

    def close(self) -> None:
        super().close()
        self.is_connected = True


@pytest.fixture
def idle() -> ClosedWhileIdle:
    return ClosedWhileIdle("127.0.0.1:21")


@pytest.fixture
def idle_cache(idle: ClosedWhileIdle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """It has read the records of its node, and reads by the procedure."""
    schema: list[Any] = [(KeyColumn("id", ColumnKind.INTEGER),)]
    monkeypatch.setattr(ShardDatabase, "run", lambda *_: schema.pop() if schema else ([], None))
    path = tmp_path / "freshness.toml"
    path.write_text(CONFIG)
    cache = Cache(load_config(path, {}), open_node=lambda *_: idle)
    assert read_outcome(cache) is ReadOutcome.NO_RECORD
    assert idle.has_read_records
    assert read_outcome(cache) is ReadOutcome.NO_RECORD
    assert not idle.has_read_records, "a young copy"
    return cache


def read_outcome(cache: Cache) -> ReadOutcome:
    outcome: ReadOutcome = cache.get("customer", 1, max_staleness_seconds=60, explain=True).outcome
    return outcome


def test_a_connection_that_was_closed_while_idle_is_replaced_and_its_records_are_forgotten(
    idle_cache: Cache, idle: ClosedWhileIdle
) -> None:
    """They are of the server that was there before (F129)."""
    idle.is_connected = False
    assert read_outcome(idle_cache) is ReadOutcome.NO_RECORD
    assert idle.has_read_records
    assert idle.closings == 1


def test_a_shadow_read_that_meets_the_failure_of_a_node_forgets_its_records(
    idle_cache: Cache, idle: ClosedWhileIdle
) -> None:
    """The next read of that reader is on a new connection (F129)."""
    idle.is_connected = False
    with pytest.raises(NodeUnavailable):
        idle_cache._pipeline.nodes.look(idle_cache.lookups.find("customer", 1))
    assert read_outcome(idle_cache) is ReadOutcome.NO_RECORD
    assert idle.has_read_records


def test_threads_that_read_one_after_the_other_share_connections(cache: Cache, nodes: Nodes) -> None:
    for _ in range(3):
        thread = threading.Thread(target=cache.get, args=("customer", 1))
        thread.start()
        thread.join()
    assert nodes.closings == [0]


def test_reads_at_the_same_time_have_connections_of_their_own_and_no_more_than_bounded(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema: list[Any] = [(KeyColumn("id", ColumnKind.INTEGER),)]
    monkeypatch.setattr(ShardDatabase, "run", lambda *_: schema.pop() if schema else ([], None))
    path = tmp_path / "freshness.toml"
    path.write_text(CONFIG.replace("[keyspaces.shop]", "connections_max = 3\n[keyspaces.shop]", 1))
    cache = Cache(load_config(path, {}), open_node=nodes.open)
    running, most = [0], [0]
    look = threading.Lock()

    def load(_: Any, lookups: Any, *__: Any) -> list[Loaded]:
        with look:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.005)
        with look:
            running[0] -= 1
        return [Loaded(None, {}, ReadOutcome.NO_TOKEN) for _ in lookups]

    monkeypatch.setattr(ObjectLoader, "load", load)
    threads = [threading.Thread(target=cache.get, args=("customer", key)) for key in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [3]
    assert nodes.closings == [0] * 3


def test_a_forked_process_leaves_its_parents_alone(
    cache: Cache, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.get("customer", 1)
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    cache.get("customer", 1)
    cache.close()
    assert nodes.closings == [0, 1]


def test_a_forked_process_that_only_closes_closes_nothing(
    cache: Cache, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.get("customer", 1)
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    cache.close()
    assert nodes.closings == [0]


def test_only_the_records_of_shards_that_serve_are_fetched(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keyspace amid a split: the new shards are followed by invalidators and have no say in reads yet."""
    schema: list[Any] = [(KeyColumn("id", ColumnKind.INTEGER),)]
    monkeypatch.setattr(ShardDatabase, "run", lambda *_: schema.pop() if schema else ([], None))
    shard = '[[keyspaces.shop.shards]]\nname = "{}"\nprimary = "mysql://app@127.0.0.1:{}/shop"\nserving = {}\n'
    shards = "".join(shard.format(*each) for each in [("-", 1, "true"), ("-80", 2, "false"), ("80-", 3, "false")])
    sharding = 'sharding = { column = "id", function = "numeric" }\n'
    start, end = CONFIG.index("[[keyspaces"), CONFIG.index("[objects")
    path = tmp_path / "freshness.toml"
    path.write_text(CONFIG[:start] + sharding + shards + CONFIG[end:])
    cache = Cache(load_config(path, {}), open_node=nodes.open)
    sent: list[bytes] = []
    perform = MemoryNode.perform

    def spy(node: MemoryNode, requests: Any) -> Any:
        sent.extend(request.key for request in requests)
        return perform(node, requests)

    monkeypatch.setattr(MemoryNode, "perform", spy)
    assert cache.get("customer", 1) is None
    assert [key for key in sent if key.startswith(b"shop:!")] == [b"shop:!shop/-"]


def test_a_kept_key_stands_for_no_other(cache: Cache) -> None:
    """True and 1.0 equal 1 in Python, but an integer column does not take them as keys, even if 1 was often read."""
    assert cache.get("customer", 1, explain=True).item == cache.get("customer", 1, explain=True).item
    for other in (True, 1.0):
        with pytest.raises(FormatError, match="customer"):
            cache.get("customer", other)
    with pytest.raises(ConfigError, match="unknown object"):
        cache.get_many("costumer", [])


class TakenByAnother(set[str]):
    """A thread has seen an object here, and another one has taken it since."""

    def __bool__(self) -> bool:
        return True


def test_an_object_that_another_thread_reads_again_is_read_once(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cache.lookups.find("customer", 7)
    monkeypatch.setattr(cache.lookups, "_doubted", TakenByAnother())
    assert cache.lookups.find("customer", 7) == before


def test_key_columns_are_read_again_if_the_invalidator_has_others(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most once in some time, and a database that is down leaves them as they are."""
    now = [0.0]
    monkeypatch.setattr("appclient.reading.lookup.running_clock", lambda: now[0])
    found: list[Any] = [SourceUnavailable("no server answers"), (KeyColumn("id", ColumnKind.BINARY),)]

    def columns_of(*_: object) -> Any:
        if isinstance(answer := found.pop(0), Exception):
            raise answer
        return answer

    lookups = cache.lookups
    before = lookups.find("customer", 7).policy
    monkeypatch.setattr(lookups, "_columns_of", columns_of)

    def note(fingerprint: int) -> None:
        covered = SimpleNamespace(objects={"customer": Coverage(fingerprint, empty_position("mysql"))})
        view: Any = SimpleNamespace(records={"shop/-": covered, "other/-": None})
        lookups.note(view)

    note(before.fingerprint)
    assert lookups.find("customer", 7).policy == before
    note(before.fingerprint + 1)
    assert lookups.find("customer", 7).policy == before
    note(before.fingerprint + 1)
    assert lookups.find("customer", 7).policy == before
    assert len(found) == 1, "the database was asked, and is not asked again so soon"
    now[0] = AGAIN_SECONDS
    note(before.fingerprint + 1)
    assert lookups.find("customer", b"7").policy.fingerprint != before.fingerprint
    with pytest.raises(FormatError):
        lookups.find("customer", 7)


def test_an_entry_whose_value_does_not_decode_is_read_from_the_database(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F43: it says nothing about the row."""
    row = {"id": 1, "name": "Ada"}
    monkeypatch.setattr(cache.lookups.loaders["customer"], "load", lambda *_: [Loaded(row, {}, None)])
    broken = Read(ReadOutcome.HIT, b"\xc1 is no beginning of a value")
    read = cache._pipeline.decode(cache.lookups.find("customer", 1), broken, NO_DEMAND)
    assert (read.value, read.outcome) == (row, ReadOutcome.FOREIGN)


@pytest.mark.parametrize("on_unknown", ["replica", "primary"])
def test_if_the_node_says_nothing_the_setting_decides_over_the_server(
    on_unknown: str, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "freshness.toml"
    path.write_text(CONFIG.replace("[cache]", f'[cache]\non_unknown = "{on_unknown}"'))
    monkeypatch.setattr(ShardDatabase, "run", lambda *_: (KeyColumn("id", ColumnKind.INTEGER),))
    cache = Cache(load_config(path, {}), open_node=nodes.open)
    asked: list[Mapping[str, EventToken]] = []

    def load(lookups: Sequence[Lookup], _: Any) -> list[Loaded]:
        asked.extend(lookup.required for lookup in lookups)
        return [Loaded(None, {}) for _ in lookups]

    monkeypatch.setattr(cache.lookups.loaders["customer"], "load", load)
    cache.get("customer", 1)
    cache.get_many("customer", [1, 2])
    broken = Read(ReadOutcome.HIT, b"\xc1 begins no value")
    cache._pipeline.decode(cache.lookups.find("customer", 1), broken, NO_DEMAND)
    assert asked == [{} if on_unknown == "replica" else {"shop/-": LATEST}] * 4


# -- a database that is down ----------------------------------------------------------------------------------

TWO = """[cache]
nodes = ["127.0.0.1:21"]
namespace = "shop"
[keyspaces.shop]
flavor = "mysql"
[[keyspaces.shop.shards]]
primary = "mysql://app@127.0.0.1:1/shop"
[keyspaces.other]
flavor = "mysql"
[[keyspaces.other.shards]]
primary = "mysql://app@127.0.0.1:2/other"
[objects.customer]
keyspace = "shop"
table = "customers"
[objects.report]
keyspace = "other"
key = "id"
members = { reports = "id" }
"""


def test_a_database_that_is_down_concerns_its_own_keyspace(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is opened, and the objects of a keyspace are there when it answers."""
    down = {"shop/-", "other/-"}
    asked: list[str] = []

    def run(shard: Any, read: Any, **_: Any) -> Any:
        lineage = shard._shard.lineage
        asked.append(lineage)
        if lineage in down:
            raise SourceUnavailable(f"no server of {lineage} answers", hint="is the server up?")
        return (KeyColumn("id", ColumnKind.INTEGER),) if "find_columns" in read.__qualname__ else read

    monkeypatch.setattr(ShardDatabase, "run", run)
    monkeypatch.setattr(ShardDatabase, "rows_with_token", lambda *_: ([], None))
    monkeypatch.setattr(ShardDatabase, "snapshot", lambda _, load, *__: (load(None), None))
    path = tmp_path / "freshness.toml"
    path.write_text(TWO)
    cache = Cache(load_config(path, {}), open_node=nodes.open)
    with pytest.raises(SourceUnavailable, match="no server of shop/- answers"):
        cache.get("customer", 1)
    down.remove("shop/-")
    assert cache.get("customer", 1) is None

    @cache.loader("report")
    def load_report(_: Any, key: int) -> dict[str, int]:
        return {"id": key}

    with pytest.raises(SourceUnavailable, match="no server of other/- answers"):
        cache.get("report", 1)
    with pytest.raises(SourceUnavailable, match="no server of other/- answers"):
        cache.get_many("report", [1, 2])
    assert cache.get("customer", 2) is None
    down.clear()
    assert cache.get("report", 1) == {"id": 1}
    count = asked.count("other/-")
    assert cache.get_many("report", [1, 2]) == {1: {"id": 1}, 2: {"id": 2}}
    assert asked.count("other/-") == count, "the schema is read once"
    with pytest.raises(ConfigError, match="unknown object 'reprot'") as unknown:
        cache.get("reprot", 1)
    assert "customer, report" in unknown.value.hint


PAGE = """
[objects.page]
key = ["tenant_id", "slug"]
members = { pages = ["tenant_id", "slug"], blocks = ["tenant_id", "page"] }
"""


@pytest.fixture
def page(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache whose loader returns its arguments."""
    kinds = {"tenant_id": ColumnKind.INTEGER, "slug": ColumnKind.STRING, "page": ColumnKind.STRING}

    def columns_of(
        _: object, __: str, table: str, names: tuple[str, ...] = (), *___: object
    ) -> tuple[KeyColumn, ...]:
        collations = {ColumnKind.STRING: "utf8mb4_bin"}
        return tuple(KeyColumn(each, kinds[each], collations.get(kinds[each], "")) for each in names)

    monkeypatch.setattr("appclient.reading.lookup.key_columns", columns_of)
    monkeypatch.setattr("appclient.reading.lookup.read_variables", lambda *_: {})
    monkeypatch.setattr(ShardDatabase, "run", lambda shard, read: read(None, shard._shard.primary))
    monkeypatch.setattr(ShardDatabase, "snapshot", lambda _, load, *__: (load(None), None))
    path = tmp_path / "freshness.toml"
    path.write_text(CONFIG.partition("[objects")[0] + PAGE)
    cache = Cache(load_config(path, {}), open_node=nodes.open)

    @cache.loader("page")
    def load_page(_: Any, tenant_id: int, slug: str) -> list[Any]:
        return [tenant_id, slug]

    return cache


def test_a_key_of_several_columns_is_a_tuple_or_a_mapping(page: Cache) -> None:
    assert page.get("page", (7, "a")) == [7, "a"]
    assert page.get("page", {"slug": "a", "tenant_id": "07"}) == [7, "a"], "as the columns have it"
    assert page.get_many("page", [(7, "a"), (8, "b")]) == {(7, "a"): [7, "a"], (8, "b"): [8, "b"]}
    one, other = (page.get("page", key, explain=True) for key in ((7, "a "), {"tenant_id": 7, "slug": "a"}))
    assert one.item == other.item == b"shop:page:7:a"


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (7, "got 1 values"),
        ((7,), "got 1 values"),
        ((7, "a", "b"), "got 3 values"),
        ([7, "a"], "got 1 values"),
        (("a", 7), r"column tenant_id \(integer\) got str"),
        ((7, None), "column slug is NULL in a key"),
        ({}, "got no column"),
        ({"tenant_id": 7}, "got tenant_id"),
        ({"tenant_id": 7, "page": "a"}, "got tenant_id, page"),
        ({"tenant_id": 7, "slug": "a", "page": "a"}, "got tenant_id, slug, page"),
        ({"tenant_id": 7, "slug": None}, "column slug is NULL in a key"),
    ],
)
def test_a_key_that_does_not_fit_its_columns_is_refused(page: Cache, key: Any, says: str) -> None:
    with pytest.raises(FormatError, match=f"the key of page:? {says}") as refused:
        page.get("page", key)
    assert refused.value.hint


def test_a_schema_is_read_from_the_first_shard_that_answers(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(shard: Any, _: Any) -> Any:
        if shard._shard.name == "-80":
            raise SourceUnavailable("no server of shop/-80 answers")
        return (KeyColumn("id", ColumnKind.INTEGER),)

    monkeypatch.setattr(ShardDatabase, "run", run)
    path = tmp_path / "freshness.toml"
    text = CONFIG.replace('flavor = "mysql"\n', 'flavor = "mysql"\nsharding = { column = "id", function = "hash" }\n')
    one = '[[keyspaces.shop.shards]]\nprimary = "mysql://app@127.0.0.1:1/shop"\n'
    two = "".join(
        one.replace("primary", f'name = "{name}"\nprimary').replace(":1/", f":{port}/")
        for port, name in ((1, "-80"), (2, "80-"))
    )
    path.write_text(text.replace(one, two))
    cache = Cache(load_config(path, {}), open_node=nodes.open)
    assert list(cache.lookups.definitions) == ["customer"]


@pytest.mark.parametrize("keys", ["12", b"12", {"id": 1}])
def test_one_key_in_the_place_of_several_is_refused(cache: Cache, keys: Any) -> None:
    """A text would be as many keys as it has letters."""
    with pytest.raises(ConfigError, match="expected a list of keys"):
        cache.get_many("customer", keys)


@pytest.mark.parametrize("seconds", [-1, float("nan"), Decimal("NaN"), "10", timedelta(seconds=1)])
def test_a_bound_that_is_no_number_of_seconds_is_refused(cache: Cache, seconds: Any) -> None:
    """A NaN would be no bound."""
    with pytest.raises(ConfigError, match="at least 0"):
        cache.get("customer", 1, max_staleness_seconds=seconds)


def test_a_cache_is_closed_at_the_end_of_its_block(cache: Cache, nodes: Nodes) -> None:
    with cache as entered:
        assert entered is cache
        assert cache.get("customer", 1) is None
        assert nodes.closings == [0]
    assert nodes.closings == [1]
