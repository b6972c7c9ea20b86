"""How the rate changes with the length of the log, the columns of a table, the keys of a transaction, the nodes, the
shards, and how far the replica lags that reads are filled from.

Each curve is also a result: its last point against its first. A point is the median of few runs, in wall time.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from statistics import median
from typing import Any, Final

from benchmarks.measure import Result, paced, stopwatch
from benchmarks.pipeline import (
    STREAM_SECONDS,
    Log,
    Pipeline,
    address_of,
    find_definitions,
    open_nodes,
    open_pipeline,
    open_server,
    write_log,
)
from benchmarks.shop import Shop, open_shop
from freshness.config.server import ServerAddress
from freshness.database.connection import executed_position
from freshness.objects.registry import ObjectDefinition
from freshness.position import MariadbPosition, Position
from freshness.stream.source import Transaction
from integration.servers import DatabaseServer, ServerFailed
from integration.servers.database import SCHEMA
from invalidator.binlog.source import BinlogSource

RUNS: Final = 3
EVENTS: Final = (1_000, 3_000, 10_000, 30_000)
COLUMNS: Final = (4, 8, 16, 32, 64)
ROWS_OF_COLUMNS: Final = 100_000
ROWS_IN_STATEMENT: Final = 1000
KEYS: Final = (1, 3, 10, 100, 1000)
NODES: Final = (1, 2, 4, 8)
SHARDS: Final = (1, 2, 4)
KEYS_IN_RUN: Final = 20_000
BATCH_TRANSACTIONS: Final = 2000
SHARD_SECONDS: Final = 120.0
LAGS_SECONDS: Final = (0, 1, 2, 4)
CHANGES_A_SECOND: Final = 100
"""Of one of 1,000 customers each."""

READING_SECONDS: Final = 2.0
SETTLING_SECONDS: Final = 1.0


def measure_growth(_: int) -> list[Result]:
    """Six curves, on MariaDB."""
    with open_server("mariadb") as server:
        results = [_by_events(server), _by_columns(server)]
        log = write_log(server, "singles", EVENTS[-1], 1)
        results += [_by_keys(server), _by_nodes(server), _by_shards(server, log)]
    return [*results, _by_replica_lag()]


def _curve(name: str, what: str, unit: str, values: Sequence[int], rate: Callable[[int], float]) -> Result:
    points = tuple((value, median(rate(value) for _ in range(RUNS))) for value in values)
    (first, low), (last, high) = points[0], points[-1]
    return Result(
        f"growth_{name}",
        high,
        unit,
        f"{first:,} {what} instead of {last:,}",
        low,
        (high / low, high / low),
        points=points,
        axis=what,
    )


def _by_events(server: DatabaseServer) -> Result:
    logs: dict[int, Log] = {}

    def rate(count: int) -> float:
        # Made when it is its turn: the next one begins by emptying the table, which invalidates it as a whole.
        log = logs.get(count) or logs.setdefault(count, write_log(server, "singles", count, 1))
        with (
            open_nodes(1) as (node,),
            open_pipeline(address_of(server), server.flavor, [node.address], log.start) as pipeline,
        ):
            return count / stopwatch(lambda: pipeline.follow_to(log.end))

    return _curve("events", "transactions in the log", "transactions/s", EVENTS, rate)


def _by_columns(server: DatabaseServer) -> Result:
    """From the wire to keys; half of the columns are texts, which have to be stepped over one by one."""
    logs: dict[int, tuple[Position, Position, dict[str, ObjectDefinition]]] = {}

    def rate(count: int) -> float:
        start, end, definitions = logs.get(count) or logs.setdefault(count, _write_wide(server, count))
        source = BinlogSource(address_of(server), server.flavor, frozenset(definitions), definitions=definitions)
        rows = [0]

        def read() -> None:
            source.open(start)
            streamed, deadline = start, time.monotonic() + STREAM_SECONDS
            while not streamed.contains(end):
                assert time.monotonic() < deadline, f"only {streamed} was streamed"
                received = source.poll(1.0, ROWS_OF_COLUMNS)
                streamed = streamed.union_all([each.position for each in received])
                rows[0] += sum(len(each.items) for each in received)

        try:
            seconds = stopwatch(read)
        finally:
            source.close()
        assert rows == [ROWS_OF_COLUMNS], "every row gave a key"
        return ROWS_OF_COLUMNS / seconds

    return _curve("columns", "columns", "rows/s", COLUMNS, rate)


def _write_wide(server: DatabaseServer, columns: int) -> tuple[Position, Position, dict[str, ObjectDefinition]]:
    """A filled table with ``columns`` columns: (before, after, the object of its rows)."""
    table = f"wide{columns}"
    names = [f"{'n' if place % 2 else 't'}{place}" for place in range(1, columns)]
    types = ", ".join(f"{name} {'INT' if name[0] == 'n' else 'VARCHAR(20)'}" for name in names)
    values = ",".join("7" if name[0] == "n" else "'text'" for name in names)
    server.execute(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, {types})", database=SCHEMA)
    with server.connect(SCHEMA) as connection, connection.cursor() as cursor:
        start = executed_position(connection, server.flavor)
        for first in range(0, ROWS_OF_COLUMNS, ROWS_IN_STATEMENT):
            lines = ",".join(f"({first + place},{values})" for place in range(ROWS_IN_STATEMENT))
            cursor.execute(f"INSERT INTO {table} VALUES {lines}")
        end = executed_position(connection, server.flavor)
    return start, end, find_definitions(address_of(server), "grow", table)


def _by_keys(server: DatabaseServer) -> Result:
    with open_nodes(1) as (node,):
        return _curve(
            "keys", "keys in a transaction", "keys/s", KEYS, lambda keys: _apply(server, [node.address], keys)
        )


def _by_nodes(server: DatabaseServer) -> Result:
    with open_nodes(max(NODES)) as nodes:
        addresses = [node.address for node in nodes]
        return _curve("nodes", "cache nodes", "keys/s", NODES, lambda count: _apply(server, addresses[:count], 1))


_namespaces = iter(range(1_000_000))


def _apply(server: DatabaseServer, nodes: Sequence[str], keys: int) -> float:
    """Keys a second, of transactions that are there already."""
    namespace = b"grow%d" % next(_namespaces)
    transactions = [
        Transaction(
            MariadbPosition.of(0, 1, number + 2),
            0,
            items=tuple(b"%b:small:%d" % (namespace, number * keys + place) for place in range(keys)),
        )
        for number in range(KEYS_IN_RUN // keys)
    ]
    start = MariadbPosition.of(0, 1, 1)
    address = address_of(server)
    with open_pipeline(address, server.flavor, nodes, start, namespace=namespace.decode()) as pipeline:
        pipeline.driver.run(pipeline.shard.join_missing())
        pipeline.shard.opened(start)
        seconds = stopwatch(lambda: _apply_all(pipeline, transactions))
        assert len(pipeline.shard.joined) == len(nodes), "no node was lost"
    return KEYS_IN_RUN / seconds


def _apply_all(pipeline: Pipeline, transactions: Sequence[Transaction]) -> None:
    for place in range(0, len(transactions), BATCH_TRANSACTIONS):
        pipeline.driver.run(pipeline.shard.apply(transactions[place : place + BATCH_TRANSACTIONS]))


# -- shards: a process each ---------------------------------------------------------------------------------


def _by_shards(server: DatabaseServer, log: Log) -> Result:
    """Each process follows the same log to a node of its own, which is what shards of equal size are."""
    return _curve("shards", "shards", "transactions/s", SHARDS, lambda count: _follow_together(server, log, count))


def _follow_together(server: DatabaseServer, log: Log, count: int) -> float:
    context = multiprocessing.get_context("spawn")
    with open_nodes(count) as nodes:
        pipes, processes = [], []
        for node in nodes:
            here, there = context.Pipe()
            arguments = (address_of(server), server.flavor, node.address, log, there)
            processes.append(context.Process(target=_follow, args=arguments, daemon=True))
            processes[-1].start()
            there.close()
            pipes.append(here)
        try:
            for pipe in pipes:
                pipe.recv()
            for pipe in pipes:
                pipe.send(None)
            times = [_receive(pipe) for pipe in pipes]
        except EOFError:
            raise ServerFailed("a shard's process has ended", hint="its own output says why") from None
        finally:
            for pipe in pipes:
                pipe.close()
            for process in processes:
                process.join(10)
    return count * log.transactions / (max(end for _, end in times) - min(begin for begin, _ in times))


def _receive(pipe: Any) -> tuple[float, float]:
    if not pipe.poll(SHARD_SECONDS):
        raise ServerFailed(f"a shard was silent for {SHARD_SECONDS:.0f} s")
    times: tuple[float, float] = pipe.recv()
    return times


def _follow(address: ServerAddress, flavor: Any, node: str, log: Log, pipe: Any) -> None:
    with open_pipeline(address, flavor, [node], log.start) as pipeline:
        pipe.send(None)
        pipe.recv()
        begun = time.monotonic()
        pipeline.follow_to(log.end)
        pipe.send((begun, time.monotonic()))


# -- reads while customers change, filled from a replica that lags -------------------------------------------


def _by_replica_lag() -> Result:
    with open_shop(node_count=1) as shop, _changing(shop):
        lagging = [LAGS_SECONDS[0]]

        def rate(seconds: int) -> float:
            if lagging != [seconds]:
                lagging[:] = [seconds]
                shop.pair.replica.replicate_from(shop.pair.primary, delay_seconds=seconds)
                _read_for(shop, seconds + SETTLING_SECONDS)
            return _read_for(shop, READING_SECONDS) / READING_SECONDS

        return _curve("replica_lag", "seconds that the replica lags", "reads/s", LAGS_SECONDS, rate)


def _read_for(shop: Shop, seconds: float) -> int:
    """Random customers, one after the other, for so long. How many."""
    chance, get = random.Random(1), shop.cache.get
    done, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        assert get("customer", chance.choice(shop.keys)) is not None, "every customer is there"
        done += 1
    return done


@contextmanager
def _changing(shop: Shop) -> Iterator[None]:
    """Change customers in the background, at `CHANGES_A_SECOND`."""
    chance = random.Random(2)
    with closing(shop.pair.primary.connect(SCHEMA)) as connection, connection.cursor() as cursor:

        def change() -> None:
            cursor.execute(shop.visit(chance.choice(shop.keys)))

        with paced(change, CHANGES_A_SECOND):
            yield
