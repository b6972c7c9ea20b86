"""From a commit on the primary to its acknowledged invalidation, while a writer commits at a steady pace.

In the same run, on the same log: a bare reader, which takes the packets off the socket, looks into none, and makes
one round trip to memcached for each lot of them. That is the least that anybody needs. A commit begins, on MySQL, at
the time that the log gives in microseconds; on MariaDB, whose log has whole seconds, when the writer, a process of
its own on this machine, sends COMMIT.
"""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pymysql

from benchmarks.cores import settle_rest
from benchmarks.decode import FLAVORS
from benchmarks.measure import Criterion, Result, Timings, interleave
from benchmarks.pipeline import TABLE, Pipeline, address_of, open_nodes, open_pipeline, open_server
from freshness.config.server import ServerAddress
from freshness.database.connection import connect, executed_position
from freshness.position import Position
from freshness.stream.source import Transaction
from integration.servers import DatabaseServer, ServerFailed
from integration.servers.database import SCHEMA
from invalidator.binlog.dump import request_stream
from invalidator.binlog.source import HEARTBEAT_SECONDS
from invalidator.binlog.wire.event import GTID, XID, parse_event, parse_mysql_gtid
from invalidator.loop.loop import LoopObserver

RATE: Final = 2000
"""Commits a second that the writer aims at; what it reached is in the name of the baseline."""

COMMITS: Final = 3000
"""In one round. The first tenth is not counted: connections are new."""

ROUNDS_MAX: Final = 5
WRITER_SECONDS: Final = 60.0
"""Within this time the writer must be through, and everything read."""

CRITERIA: Final = {50: Criterion(at_most=3), 99: Criterion(at_most=10)}
ROUND_TRIP: Final = b"ms bench:lag 2 T60\r\nOK\r\n"


@dataclass(frozen=True, slots=True)
class Seen:
    """For each transaction in log order: the time of its arrival, and of its commit if the log has it, in
    ns."""

    through_ns: tuple[int, ...]
    committed_ns: tuple[int, ...]


def measure_lag(rounds: int) -> list[Result]:
    """Both servers: the median and the 99th percentile."""
    results = []
    for flavor in FLAVORS:
        with open_server(flavor) as server, open_nodes(1) as (node,):
            results += _measure(server, node.address, min(rounds, ROUNDS_MAX))
    return results


def _measure(server: DatabaseServer, node: str, rounds: int) -> list[Result]:
    lags: dict[str, list[list[float]]] = {"ours": [], "bare": []}
    rates: list[float] = []

    def side(name: str, see: Callable[[DatabaseServer, str, _Writer, int], Seen], number: int) -> float:
        first = (2 * number + (name == "bare")) * COMMITS
        with _writing(server, first) as writer:
            seen = see(server, node, writer, number)
            sent = writer.finish()
        begins = seen.committed_ns if server.flavor == "mysql" else sent
        lag = [(through - begin) / 1e9 for begin, through in zip(begins, seen.through_ns, strict=True)]
        counted = sorted(lag[COMMITS // 10 :])
        if number:  # round 0 is not measured
            lags[name].append(counted)
            rates.append((COMMITS - 1) / ((sent[-1] - sent[0]) / 1e9))
        return percentile(counted, 50)

    interleave(lambda n: side("ours", _see_ours, n), lambda n: side("bare", _see_bare, n), rounds)
    rate = sorted(rates)[len(rates) // 2]
    baseline = f"bare read + one memcached round trip, {rate:,.0f} commits/s"
    results = []
    for percent, criterion in CRITERIA.items():
        ours, bare = (tuple(percentile(each, percent) for each in lags[name]) for name in ("ours", "bare"))
        name = f"lag_{server.flavor}_p{percent}"
        results.append(Timings(ours, bare).microseconds(name, 1, baseline, criterion))
    return results


def percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


# -- the writer -------------------------------------------------------------------------------------------


class _Writer:
    """A process that waits for `start`, commits `COMMITS` rows, and reports when it sent each COMMIT."""

    def __init__(self, address: ServerAddress, first: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_write, args=(address, first, there), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        settle_rest(self._process.pid)
        there.close()
        self._receive()

    def start(self) -> None:
        self._here.send(None)

    def finish(self) -> tuple[int, ...]:
        sent: tuple[int, ...] = self._receive()
        return sent

    def close(self) -> None:
        self._here.close()
        self._process.join(WRITER_SECONDS)

    def _receive(self) -> Any:
        try:
            if self._here.poll(WRITER_SECONDS):
                return self._here.recv()
        except EOFError:
            raise ServerFailed("the writer has ended", hint="its own output says why") from None
        raise ServerFailed(f"the writer was silent for {WRITER_SECONDS:.0f} s", hint="is the machine overloaded?")


@contextmanager
def _writing(server: DatabaseServer, first: int) -> Iterator[_Writer]:
    writer = _Writer(address_of(server), first)
    try:
        yield writer
    finally:
        writer.close()


def _write(address: ServerAddress, first: int, pipe: Any) -> None:
    """In the writer's process."""
    sent: list[int] = []
    with (
        pymysql.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            password=str(address.password),
            database=SCHEMA,
            autocommit=False,
            ssl_disabled=True,
        ) as connection,
        connection.cursor() as cursor,
    ):
        pipe.send(None)
        pipe.recv()
        begun = time.monotonic()
        for number in range(COMMITS):
            early = begun + number / RATE - time.monotonic()
            if early > 0:
                time.sleep(early)
            cursor.execute(f"INSERT INTO {TABLE} VALUES ({first + number},1,2,3,'hello world')")
            sent.append(time.time_ns())
            connection.commit()
    pipe.send(tuple(sent))


# -- the two readers ----------------------------------------------------------------------------------------


class _Stamps(LoopObserver):
    """Notes when the invalidation of each transaction is acknowledged; starts the writer when the stream is open."""

    def __init__(self, writer: _Writer, pipeline: Pipeline) -> None:
        self._writer, self._pipeline = writer, pipeline
        self.through_ns: list[int] = []
        self.committed_ns: list[int] = []

    def stream_opened(self, start: Position) -> None:
        self._writer.start()

    def applied(self, transactions: Sequence[Transaction], keys: int, begun: float) -> None:
        assert keys == len(transactions), "each writes one row"
        self.through_ns += [self._pipeline.acknowledged_ns] * len(transactions)
        self.committed_ns += [transaction.timestamp_us * 1000 for transaction in transactions]


def _see_ours(server: DatabaseServer, node: str, writer: _Writer, number: int) -> Seen:
    address = address_of(server)
    start = _executed(address, server)
    deadline = time.monotonic() + WRITER_SECONDS
    with open_pipeline(address, server.flavor, [node], start, namespace=f"bench{number}") as pipeline:
        stamps = _Stamps(writer, pipeline)

        def is_done() -> bool:
            assert time.monotonic() < deadline, f"{len(stamps.through_ns)} of {COMMITS} transactions came"
            return len(stamps.through_ns) >= COMMITS

        pipeline.follow(is_done, stamps)
    return Seen(tuple(stamps.through_ns), tuple(stamps.committed_ns))


def _see_bare(server: DatabaseServer, node: str, writer: _Writer, number: int) -> Seen:
    address = address_of(server)
    start = _executed(address, server)
    lots: list[tuple[int, list[bytes]]] = []
    host, _, port = node.rpartition(":")
    with (
        connect(address, read_timeout_seconds=WRITER_SECONDS) as connection,
        closing(socket.create_connection((host, int(port)))) as cache,
    ):
        cache.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        packets, has_checksum = request_stream(connection, server.flavor, start, HEARTBEAT_SECONDS)
        writer.start()
        commits = 0
        while commits < COMMITS:
            lot = packets.read()
            cache.sendall(ROUND_TRIP)
            assert cache.recv(100) == b"HD\r\n"
            lots.append((time.time_ns(), lot))
            commits += sum(packet[5] == XID for packet in lot)
    through_ns: list[int] = []
    committed_ns: list[int] = []
    for at, lot in lots:
        for packet in lot:
            if packet[5] == XID:
                through_ns.append(at)
            elif packet[5] == GTID:
                start_of = parse_mysql_gtid(parse_event(packet, has_checksum=has_checksum))
                committed_ns.append(start_of.timestamp_us * 1000)
    return Seen(tuple(through_ns), tuple(committed_ns))


def _executed(address: ServerAddress, server: DatabaseServer) -> Position:
    with connect(address) as connection:
        return executed_position(connection, server.flavor)
