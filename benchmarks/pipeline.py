"""The invalidator's own parts on a real server's log and real memcached nodes, as ``invalidator.process.worker``
joins them.

For the benchmarks of the whole way from the log to acknowledged invalidations. It leaves out the parts off
that way: heartbeats, preflight, the service, and putting stripes back, which are there from the start. Also
the server
with the logs that are read, made once for all rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

from benchmarks.cores import settle_node, settle_rest
from benchmarks.decode import SINGLE, SMALL
from freshness.algorithm.applier import create_members
from freshness.algorithm.driver import BlockingDriver, drive, running_clock
from freshness.algorithm.envelope import Stripe, stripe_keys
from freshness.algorithm.membership import NodePolicy
from freshness.algorithm.request import Add, Flows, Head, Strikes
from freshness.config.server import ServerAddress
from freshness.config.stream import StreamConfig
from freshness.database.connection import connect, executed_position
from freshness.database.schema import key_columns
from freshness.keys.cachekey import KeyBuilder
from freshness.keys.placement import Placement
from freshness.nodes.memcached import MemcachedNode
from freshness.objects.keyfinder import KeyFinder
from freshness.objects.registry import ObjectDefinition
from freshness.position import Position, empty_position
from integration.servers import DatabaseServer, Flavor, Memcached
from integration.servers.database import SCHEMA, make_database
from invalidator.binlog.source import BinlogSource
from invalidator.loop.loop import LoopObserver, LoopStep, OpenStream, Poll, run_loop
from invalidator.loop.shard import ShardInvalidator
from invalidator.process.app import seldom_collected

TABLE: Final = "small"
LINEAGE: Final = "bench/-"
NODE_MEMORY_MB: Final = 512
STRIPES: Final = 65_536
"""As by default."""

STRIPES_AT_ONCE: Final = 2048
LIFE: Final = b"benchmrk"
LEASE_SECONDS: Final = 10
STREAM_SECONDS: Final = 120.0
"""Within this time a log must be acknowledged."""

SERVER_OPTIONS: Final = (
    "--sync-binlog=0",
    "--innodb-flush-log-at-trx-commit=0",
    "--binlog-row-event-max-size=1048576",
)
FILL_STATEMENT_ROWS: Final = 10_000
FILL_TIMEOUT_SECONDS: Final = 300


@dataclass(frozen=True, slots=True)
class Log:
    """One log file. ``start`` and ``end``: positions of the server before and after it."""

    name: str
    file: str
    transactions: int
    rows: int
    start: Position
    end: Position


# -- the server -------------------------------------------------------------------------------------------


@contextmanager
def open_server(flavor: Flavor) -> Iterator[DatabaseServer]:
    """A server with the empty table ``small``. Raises `ServerFailed` if it does not start."""
    server = make_database(flavor, server_id=1, options=SERVER_OPTIONS)
    try:
        server.launch()
        server.wait_ready()
        settle_rest(server.pid)
        server.execute(f"CREATE DATABASE {SCHEMA}")
        for statement in (SMALL, SINGLE):
            server.execute(statement, database=SCHEMA)
        yield server
    finally:
        server.stop()


def address_of(server: DatabaseServer) -> ServerAddress:
    return ServerAddress("127.0.0.1", server.port, "app", "app", SCHEMA)


def write_log(server: DatabaseServer, name: str, transactions: int, rows: int) -> Log:
    """Write a separate log file; each transaction inserts ``rows`` rows in one event."""
    with server.connect(SCHEMA, read_timeout=FILL_TIMEOUT_SECONDS) as connection, connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE TABLE {TABLE}")
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW MASTER STATUS" if server.flavor == "mariadb" else "SHOW BINARY LOG STATUS")
        [(file, *_)] = cursor.fetchall()
        start = executed_position(connection, server.flavor)
        if rows == 1:
            cursor.execute("CALL singles(%s)", (transactions,))
        else:
            for first in range(0, transactions * rows, rows):
                lines = ",".join(f"({first + place},1,2,3,'hello world')" for place in range(rows))
                cursor.execute(f"INSERT INTO {TABLE} VALUES {lines}")
        end = executed_position(connection, server.flavor)
        cursor.execute("FLUSH BINARY LOGS")
    return Log(name, str(file), transactions, transactions * rows, start, end)


# -- the invalidator ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Pipeline:
    """Source, shard and connections, of one run. ``acknowledged_ns``: when nodes last acknowledged invalidations."""

    source: BinlogSource
    shard: ShardInvalidator
    driver: BlockingDriver
    acknowledged_ns: int = 0

    def follow(
        self,
        is_done: Callable[[], bool],
        observer: LoopObserver | None = None,
        *,
        transactions_max: int = StreamConfig().batch_transactions_max,
    ) -> None:
        """Until it is done, which is asked after every batch."""
        loop = run_loop(
            self.shard, transactions_max=transactions_max, is_stopping=is_done, observer=observer or LoopObserver()
        )
        with seldom_collected():
            drive(loop, self._answer)

    def follow_to(self, end: Position, observer: LoopObserver | None = None) -> None:
        """Follow the stream until all nodes have acknowledged ``end``. Raises `AssertionError` after
        `STREAM_SECONDS`."""
        deadline = time.monotonic() + STREAM_SECONDS

        def is_done() -> bool:
            assert time.monotonic() < deadline, f"only {self.shard.streamed} was streamed"
            return self.shard.streamed.contains(end)

        self.follow(is_done, observer)
        members = list(self.shard.members.values())
        assert all(member.is_joined and member.applied.contains(end) for member in members), "a node was lost"

    def _answer(self, step: LoopStep) -> Any:
        match step:
            case Poll():
                return self.source.poll(step.timeout_seconds, step.transactions_max)
            case OpenStream():
                return self.source.open(step.start)
            case Flows() if any(isinstance(flow.requests, Strikes) for flow in step.flows):
                answer = self.driver.answer(step)
                self.acknowledged_ns = time.time_ns()
                return answer
            case _:
                return self.driver.answer(cast(Any, step))


@contextmanager
def open_pipeline(
    address: ServerAddress, flavor: Flavor, nodes: Sequence[str], start: Position, *, namespace: str = "bench"
) -> Iterator[Pipeline]:
    """As the invalidator begins where nodes are new, but for their stripes, and the primary has executed ``start``.

    ``namespace``: prefix of its keys, so that it does not find the entries of another run.
    """
    definitions = find_definitions(address, namespace)
    head = Head(start, 1)
    placement = Placement(nodes, namespace)
    policy = NodePolicy(namespace, LINEAGE, placement.ring_version, {}, STRIPES, LEASE_SECONDS, LEASE_SECONDS, 1.0)
    shard = ShardInvalidator(
        members=create_members(nodes, policy, running_clock, lambda: LIFE, empty_position(flavor)),
        instance="bench",
        clock=running_clock,
        find_heartbeat=lambda _: None,
        streamed=empty_position(flavor),
        placement=placement,
        finder=KeyFinder(definitions),
    )
    source = BinlogSource(address, flavor, frozenset(definitions), definitions=definitions)
    connections = {node: MemcachedNode(node) for node in nodes}
    try:
        for connection in connections.values():
            put_stripes(connection, namespace, LINEAGE, empty_position(flavor))
        yield Pipeline(source, shard, BlockingDriver(connections, time.sleep, read_head=lambda: head))
    finally:
        source.close()
        for connection in connections.values():
            connection.close()


def put_stripes(
    connection: MemcachedNode, namespace: str, lineage: str, nothing: Position, life: bytes = LIFE
) -> None:
    """All stripes of a life, as they are when nothing was invalidated yet."""
    data = Stripe(life, nothing).encode()
    keys = stripe_keys(namespace, lineage, STRIPES)
    for start in range(0, STRIPES, STRIPES_AT_ONCE):
        connection.perform(tuple(Add(key, data, 0) for key in keys[start : start + STRIPES_AT_ONCE]))


@contextmanager
def open_nodes(count: int) -> Iterator[tuple[Memcached, ...]]:
    """Empty memcached servers. Raises `ServerFailed`."""
    with ExitStack() as stack:
        nodes = tuple(stack.enter_context(Memcached(memory_mb=NODE_MEMORY_MB)) for _ in range(count))
        for node in nodes:
            settle_node(node.pid)
        yield nodes


def find_definitions(address: ServerAddress, namespace: str, table: str = TABLE) -> dict[str, ObjectDefinition]:
    """The object that is a row of this table, of the table's name, keyed by its primary key."""
    with connect(address) as connection:
        columns = key_columns(connection, SCHEMA, table)
    builder = KeyBuilder(namespace, table, columns)
    return {table: ObjectDefinition(cast(Any, None), cast(Any, None), builder, {table: columns})}
