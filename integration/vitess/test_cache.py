"""From a VStream to the cache: the invalidator's loop between a stand-in for vtgate and a real memcached."""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path
from typing import Any

from freshness.algorithm.applier import create_members
from freshness.algorithm.driver import BlockingDriver, drive, running_clock
from freshness.algorithm.envelope import NodeRecord, Stripe, record_key, stripe_key, stripe_number
from freshness.algorithm.request import Add, Get, Head, Item
from freshness.config.config import load_config
from freshness.database.schema import keyspace_id
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.keys.placement import Placement
from freshness.nodes.memcached import MemcachedNode
from freshness.objects.keyfinder import KeyFinder
from freshness.objects.nodepolicy import node_policy
from freshness.objects.registry import build_registry
from freshness.position import empty_position
from freshness.stream.source import Source
from integration.servers import Memcached
from integration.servers.vtgate import SHARD, Fail, Log, Vtgate, change, column, fields, image, inserted, rows
from integration.vitess.vstreaming import Code, address_of, number, up_to, wait_until
from invalidator.loop.loop import LoopObserver, OpenStream, Poll, run_loop
from invalidator.loop.shard import ShardInvalidator
from invalidator.vstream.source import VStreamSource

CONFIG = """
[cache]
nodes = ["{node}"]
namespace = "shop"

[keyspaces.shop]
flavor = "mysql"
[[keyspaces.shop.shards]]
primary = "mysql://app:app@127.0.0.1:1/shop"
lineage = "shop/-80"

[objects.customer]
keyspace = "shop"
table = "customers"
"""
BEAT_COLUMNS = (
    column("id", 6165, charset=11),
    *(column(name, 265) for name in ("sequence", "min_us", "max_us", "epoch")),
    column("watermark", 6165, charset=11),
)


class Process:
    """The invalidator's own loop on a thread, fed by a source."""

    def __init__(self, node: Memcached, log: Log, vtgate: Vtgate, folder: Path) -> None:
        path = folder / "freshness.toml"
        path.write_text(CONFIG.format(node=node.address))
        config = load_config(path, {})
        cache = config.cache
        self.registry = build_registry(config, lambda *_: (KeyColumn("id", ColumnKind.INTEGER),), keyspace_id)
        placement = Placement(cache.nodes, cache.namespace)
        self.stripes = cache.stripes
        lives = iter(range(1, 100))
        self.written: dict[int, float] = {}
        self._shard = ShardInvalidator(
            members=create_members(
                cache.nodes,
                node_policy(cache, "shop/-80", self.registry, topology=1),
                running_clock,
                lambda: bytes([next(lives)] * 8),
                empty_position("mysql"),
            ),
            instance="me",
            clock=running_clock,
            find_heartbeat=self.written.get,
            streamed=empty_position("mysql"),
            placement=placement,
            finder=KeyFinder(self.registry),
        )
        columns = {"customers": ("id",)}
        self._source: Source = VStreamSource(address_of(vtgate), SHARD, columns)
        self._driver = BlockingDriver(
            {name: MemcachedNode(name) for name in cache.nodes},
            time.sleep,
            read_head=lambda: Head(up_to(log.last), 1),
        )
        self._stopping = threading.Event()
        self._failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run)

    def item(self, key: int) -> bytes:
        return self.registry["customer"].builder.build((key,)).item

    def stripe_of(self, key: int) -> bytes:
        return stripe_key("shop", "shop/-80", stripe_number(self.item(key), self.stripes))

    def __enter__(self) -> Process:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._source.close()
        if not self._failures.empty():
            raise self._failures.get()

    def _run(self) -> None:
        try:
            loop = run_loop(
                self._shard, transactions_max=100, is_stopping=self._stopping.is_set, observer=LoopObserver()
            )
            drive(loop, self._answer)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that joins
            self._failures.put(error)

    def _answer(self, step: Any) -> Any:
        match step:
            case Poll():
                return self._source.poll(step.timeout_seconds, step.transactions_max)
            case OpenStream():
                return self._source.open(step.start)
            case _:
                return self._driver.answer(step)


def test_changes_in_vitess_invalidate_memcached(memcached: Memcached, tmp_path: Path) -> None:
    """Through breaks of the stream, too: vtgate ends each after 4 transactions."""
    announced = fields("customers", (column("id", 265),))
    beats = fields("freshness_heartbeat", BEAT_COLUMNS)
    log = Log(ends_after=4, end=Fail(Code.UNAVAILABLE, "transport is closing: max_age"))
    mine = MemcachedNode(memcached.address)

    def get(key: bytes) -> bytes | None:
        (reply,) = mine.perform([Get(key)])
        return bytes(reply.value) if isinstance(reply, Item) else None

    def record() -> NodeRecord | None:
        found = get(record_key("shop", "shop/-80"))
        return None if found is None else NodeRecord.decode(found)

    def wait_acknowledged(last: int) -> NodeRecord:
        def find() -> NodeRecord | None:
            found = record()
            return found if found is not None and found.progress.contains(number(last)) else None

        found: NodeRecord = wait_until(find, f"{last} is acknowledged")
        return found

    with Vtgate(then=log) as vtgate, Process(memcached, log, vtgate, tmp_path) as process:
        # A record without its objects is of a node that is about to join, at a head that is still to be read.
        wait_until(lambda: (found := record()) is not None and found.objects, "the node is joined")
        joined = record()
        assert joined is not None
        stripe = Stripe(joined.life, empty_position("mysql")).encode()
        for key in range(10):
            mine.perform([Add(process.item(key), b"old", 60), Add(process.stripe_of(key), stripe, 0)])
        numbers = {
            key: log.append(announced, rows("customers", change(image(str(key)), image(str(key)))))
            for key in range(9)
        }
        wait_acknowledged(numbers[8])
        for key, which in numbers.items():
            assert get(process.item(key)) is None
            held = get(process.stripe_of(key))
            assert held is not None
            assert Stripe.decode(held).position.contains(number(which))
        assert get(process.item(9)) == b"old"
        assert get(process.stripe_of(9)) == stripe
        # TRUNCATE: no rows, but the floor of the table.
        truncated = log.append_ddl("TRUNCATE TABLE customers")
        assert wait_acknowledged(truncated).table_floors == {"customers": number(truncated)}
        # An own heartbeat, brought back by the stream, opens the node.
        process.written[1] = running_clock()
        log.append(beats, rows("freshness_heartbeat", inserted("me", "1", "5", "6", "1", "")))
        wait_until(lambda: (found := record()) is not None and found.is_open, "the node is open")
    mine.close()
