"""Invalidation on a cluster and by one process: the same stream gives the same cache, and the sink's nodes serve."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from appclient import Cache
from freshness.algorithm.envelope import (
    NodeRecord,
    find_record,
    find_stripe,
    record_key,
    resume_key,
    stripe_key,
    stripe_number,
)
from freshness.algorithm.request import Add, Get, Item
from freshness.config.access import NodeAccess
from freshness.config.config import Config, load_config
from freshness.database.connection import executed_position
from freshness.errors import StreamStopped
from freshness.history.archive_file import find_files
from freshness.keys.placement import Placement
from freshness.nodes.open import open_node
from freshness.position import Position, parse_position
from integration.configuration import CUSTOMER, PROFILE, write_config
from integration.harness import (
    CACHE,
    CUSTOMERS_TABLE,
    ORDERS_TABLE,
    STREAM,
    System,
    running_system,
    wait_for_hits,
    wait_until,
)
from integration.servers import Pair
from invalidator.archive.writer import find_resume
from spark.sink import __main__ as invalidate
from spark.sink.keeper import Keeper
from spark.sink.sink import open_sink

CLUSTER: Final = "cluster"
"""Namespace of the sink, on the nodes that the invalidator looks after too."""

KEYS: Final = range(1, 21)

FIRST_SECONDS: Final = 150.0
"""The first micro-batch starts half a dozen Python processes."""


@pytest.fixture
def objects() -> str:
    return CUSTOMER + PROFILE


@pytest.fixture
def system(pair: Pair, tmp_path: Path, port: int, objects: str) -> Iterator[System]:
    sections = f'[http]\nlisten = "127.0.0.1:{port}"\n[archive]\npath = "archive"\nrotate_seconds = 1\n'
    tables = (CUSTOMERS_TABLE, ORDERS_TABLE)
    with running_system(pair, tmp_path, tables=tables, objects=objects, extra=sections) as started:
        yield started


@pytest.fixture
def config(system: System, tmp_path: Path, objects: str) -> Config:
    """The sink's own: the same but for the namespace, with leases and lag for micro-batches on a busy machine."""
    folder = tmp_path / CLUSTER
    folder.mkdir()
    return load_config(
        write_config(
            folder,
            system.pair.primary.flavor,
            system.pair.primary.url,
            [node.address for node in system.nodes],
            replicas=[system.pair.replica.url],
            objects=objects,
            cache={**CACHE, "namespace": CLUSTER, "lease_seconds": 15, "max_staleness_seconds": 60},
            stream=STREAM,
        )
    )


def change(system: System) -> None:
    """Rows of all kinds, a key that changes, a transaction that rolls back, a whole table."""
    for key in KEYS:
        system.execute("INSERT INTO customers VALUES (%s, 'n', 0)", key)
    system.execute("UPDATE customers SET v = v + 1 WHERE id % 3 = 0")
    system.execute("UPDATE customers SET id = 100 WHERE id = 4")
    system.execute("DELETE FROM customers WHERE id = 5")
    system.execute("INSERT INTO orders VALUES (1, 7, 10), (2, 8, 20)")
    system.execute("TRUNCATE orders")
    system.execute("INSERT INTO orders VALUES (3, 9, 10)")


def head_of(system: System) -> Position:
    with system.pair.primary.connect() as connection:
        return executed_position(connection, system.pair.primary.flavor)


def find_records(system: System, namespace: str, *, is_copy: bool = False) -> list[NodeRecord]:
    [lineage] = system.config.lineages
    key = resume_key(namespace, lineage) if is_copy else record_key(namespace, lineage)
    found = [find_record(item, node.address) for node in system.nodes if (item := system.find_raw(node.address, key))]
    return [record for record in found if record is not None]


def wait_acknowledged(system: System, namespace: str, head: Position, query: Any = None) -> list[NodeRecord]:
    def has_all() -> list[NodeRecord] | None:
        if query is not None and query.exception() is not None:
            raise query.exception()
        records = find_records(system, namespace)
        is_whole = len(records) == len(system.nodes) and all(each.progress.contains(head) for each in records)
        return records if is_whole else None

    return wait_until(
        has_all, f"all nodes of {namespace} have acknowledged {head}", system.describe, seconds=FIRST_SECONDS
    )


def read_events(system: System, folder: Path, namespace: str) -> dict[bytes, list[Position]]:
    """By item, as it is named in a namespace: the transactions that changed it, as the archive says."""
    found: dict[bytes, list[Position]] = {}
    for file in find_files(folder / "archive"):
        for row in parquet.read_table(file.path, columns=["items", "gtid"]).to_pylist():
            for item in row["items"]:
                name = item.replace(b"shop:", namespace.encode() + b":", 1)
                found.setdefault(name, []).append(parse_position(system.pair.primary.flavor, row["gtid"]))
    return found


def find_lacking(
    system: System, events: Mapping[bytes, Sequence[Position]], namespace: str, *, is_copy: bool = False
) -> list[bytes]:
    """The items whose stripe is absent, or lacks one of their events that the floor lacks."""
    placement = Placement([node.address for node in system.nodes], namespace)
    records = {record.node: record for record in find_records(system, namespace, is_copy=is_copy)}
    lacking = []
    for item, positions in events.items():
        record = records.get(placement.node_for(item))
        if record is None:
            lacking.append(item)
            continue
        name = stripe_key(namespace, record.lineage, stripe_number(item, record.stripes))
        found = system.find_raw(record.node, name)
        stripe = None if found is None else find_stripe(found.value, record.life)
        if stripe is None:
            lacking.append(item)
            continue
        held = record.floor.union(stripe.position)
        if not all(held.contains(position) for position in positions):
            lacking.append(item)
    return lacking


def wait_same_cache(system: System, folder: Path) -> None:
    """The one process and the cluster have appended the events of all items, and raised the same floors."""
    for namespace in ("shop", CLUSTER):

        def has_all(namespace: str = namespace) -> bool:
            events = read_events(system, folder, namespace)
            return len(events) > len(KEYS) and not find_lacking(system, events, namespace)

        wait_until(has_all, f"the stripes of {namespace} have all", system.describe)
    ours = [record.table_floors for record in find_records(system, "shop")]
    assert [record.table_floors for record in find_records(system, CLUSTER)] == ours
    assert all(floors.keys() == {"orders"} for floors in ours)


def test_the_live_stream_through_the_sink_gives_the_same_cache_and_serves(
    system: System, config: Config, session: SparkSession, port: int, tmp_path: Path
) -> None:
    source = {"url": f"http://127.0.0.1:{port}", "keyspace": "shop"}
    checkpoint = str(tmp_path / "checkpoint")
    with open_sink(session, config) as keeper:
        query = invalidate.start_query(session, config, keeper, source, checkpoint, trigger_seconds=0.2)
        try:
            wait_acknowledged(system, CLUSTER, head_of(system), query)
            change(system)
            system.settle()
            records = wait_acknowledged(system, CLUSTER, head_of(system), query)
            wait_same_cache(system, tmp_path)
            assert all(record.progress.contains(record.floor) for record in records)
            with_hits(system, config, keeper)
            assert query.exception() is None
        finally:
            query.stop()
        lives = {record.life for record in find_records(system, CLUSTER, is_copy=True)}
        batches = keeper.batches
    # The stop may cut off the third.
    assert batches >= 2

    # Again from the checkpoint, with another keeper: the changes in between are applied, and no life ends.
    item = f"{CLUSTER}:customer:1".encode()
    count = len(read_events(system, tmp_path, CLUSTER)[item])
    system.execute("UPDATE customers SET v = 50 WHERE id = 1")
    with open_sink(session, config) as keeper:
        query = invalidate.start_query(session, config, keeper, source, checkpoint, trigger_seconds=None)
        query.awaitTermination()
        wait_acknowledged(
            system, CLUSTER, head_of(system).intersection(keeper.lineages[config.lineages[0]].acknowledger.streamed)
        )
    wait_until(
        lambda: len(read_events(system, tmp_path, CLUSTER)[item]) > count, "the archive has it", system.describe
    )
    events = {item: read_events(system, tmp_path, CLUSTER)[item]}
    assert find_lacking(system, events, CLUSTER, is_copy=True) == []
    assert {record.life for record in find_records(system, CLUSTER, is_copy=True)} == lives


def with_hits(system: System, config: Config, keeper: Keeper) -> None:
    """The nodes are open on the strength of the job's own heartbeats, and a change is seen (I1, I5)."""
    cache = Cache.open(config.path)
    try:
        wait_for_hits(cache, "customer", list(KEYS), lambda: str(keeper.describe()))
        system.execute("UPDATE customers SET v = 77 WHERE id = 2")

        def is_seen() -> bool:
            row = cache.get("customer", 2)
            return row is not None and row["v"] == 77

        wait_until(is_seen, "the change is seen", lambda: str(keeper.describe()))
    finally:
        cache.close()


def test_the_archive_through_the_job_gives_the_same_cache(
    system: System, config: Config, session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--config", str(config.path), "--archive", str(tmp_path / "archive"), "--once", "--json"]
    arguments += ["--checkpoint", str(tmp_path / "checkpoint"), "--since", "first"]
    # It begins a moment after the invalidator has made its table, and what was before that it does not have
    wait_until(lambda: find_resume(tmp_path / "archive", "shop"), "the archive has begun", system.describe)
    change(system)
    system.settle()
    head = head_of(system)

    def run_until_all() -> list[NodeRecord] | None:
        capsys.readouterr()
        assert invalidate.main(arguments, session) == 0, capsys.readouterr().err
        printed = json.loads(capsys.readouterr().out)
        assert list(printed["lineages"]) == list(config.lineages)
        records = find_records(system, CLUSTER, is_copy=True)
        # A life begins with the head as its progress: that says nothing of the archive, which is still being written
        is_through = not find_entries(config, items)
        return records if is_through and all(each.progress.contains(head) for each in records) else None

    names = ("customer", "profile")
    items = [f"{CLUSTER}:{name}:{key}".encode() for name in names for key in (*KEYS, 100)]
    unchanged = f"{CLUSTER}:customer:999".encode()
    put_entries(config, [*items, unchanged])
    copies = wait_until(run_until_all, f"the archive has {head}", system.describe)
    assert len(copies) == len(system.nodes)
    assert find_entries(config, [unchanged]) == [unchanged]
    assert invalidate.main(arguments, session) == 0
    again = find_records(system, CLUSTER, is_copy=True)
    assert [record.life for record in again] == [record.life for record in copies], "a second run ends no life"


@pytest.mark.parametrize("objects", [CUSTOMER], ids=["customer"])
def test_keys_that_are_altered_end_the_job_and_the_next_one_reads_them(
    system: System, config: Config, session: SparkSession, port: int, tmp_path: Path
) -> None:
    source = {"url": f"http://127.0.0.1:{port}", "keyspace": "shop"}
    checkpoint = str(tmp_path / "checkpoint")
    system.execute("INSERT INTO customers VALUES (1, 'n', 0)")
    with open_sink(session, config) as keeper:
        query = invalidate.start_query(session, config, keeper, source, checkpoint, trigger_seconds=0.2)
        before = wait_acknowledged(system, CLUSTER, head_of(system), query)
        system.execute("ALTER TABLE customers MODIFY id VARBINARY(20)")
        altered = head_of(system)
        ended = wait_until(query.exception, "the job ends", system.describe, seconds=FIRST_SECONDS)
        assert "the key columns of customer were altered" in str(ended)
        assert not any(each.progress.contains(altered) for each in find_records(system, CLUSTER, is_copy=True))
        with pytest.raises(StreamStopped, match="were altered"):
            invalidate.start_query(session, config, keeper, source, str(tmp_path / "another"))
    with open_sink(session, config) as keeper:
        query = invalidate.start_query(session, config, keeper, source, checkpoint, trigger_seconds=0.2)
        after = wait_acknowledged(system, CLUSTER, head_of(system), query)
        query.stop()
    assert {each.life for each in before}.isdisjoint(each.life for each in after)
    assert [each.objects.keys() for each in after] == [each.objects.keys() for each in before]
    assert all(a.objects[name] != b.objects[name] for a in after for b in before for name in a.objects)


def put_entries(config: Config, items: Sequence[bytes]) -> None:
    """Something under each key, on its node."""
    placement = Placement(config.cache.nodes, CLUSTER)
    for address in config.cache.nodes:
        node = open_node(NodeAccess("memcached"), address)
        node.perform([Add(item, b"entry", 0) for item in items if placement.node_for(item) == address])
        node.close()


def find_entries(config: Config, items: Sequence[bytes]) -> list[bytes]:
    """The keys that are there."""
    placement, found = Placement(config.cache.nodes, CLUSTER), []
    for address in config.cache.nodes:
        node = open_node(NodeAccess("memcached"), address)
        asked = [item for item in items if placement.node_for(item) == address]
        replies = node.perform([Get(item) for item in asked])
        found += [item for item, reply in zip(asked, replies, strict=True) if isinstance(reply, Item)]
        node.close()
    return found
