"""The rates of the sink and of its stream source, beside the invalidator's own on the same log in the same run.

``python -m benchmarks.sink [--transactions 100000] [--rows 1] [--json]``. Not part of ``make bench``: a run takes
minutes. A log is written first. Then each of these takes it from its beginning to its end, on the same two nodes:

* the invalidator's own parts in this process, from the primary's log to acknowledged invalidations
* the stream source, read by a query of Spark that drops the rows: of the archive, and of the service
* the sink, from the same two, to acknowledged invalidations

Seconds are those of the wall and of the CPU. CPU seconds of a query are those of its driver, its JVM and its Python
processes. The service is a process of its own, whose CPU seconds are counted separately.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.pipeline import TABLE, Log, address_of, open_nodes, open_pipeline, open_server, put_stripes, write_log
from benchmarks.report import describe_machine
from freshness.algorithm.envelope import find_record, record_key
from freshness.algorithm.request import Get
from freshness.config.config import Config, load_config
from freshness.nodes.memcached import MemcachedNode
from freshness.position import empty_position
from freshness.position.token import EventToken
from integration.configuration import write_config
from integration.harness import wait_until
from integration.servers import DatabaseServer
from integration.servers.process import find_free_port
from integration.servers.program import InvalidatorProcess
from integration.servers.spark import find_descendants
from invalidator.archive.writer import find_resume
from spark.batch import BATCH_ROWS
from spark.session import open_session
from spark.sink import __main__ as sink
from spark.sink.keeper import Keeper
from spark.sink.sink import open_sink
from spark.stream import source as updatestream

FLAVOR: Final = "mysql"
OBJECT: Final = f'[objects.{TABLE}]\ntable = "{TABLE}"\n'
LOGS: Final = ((100_000, 1), (300, 1_000))
WARM: Final = (500, 10)
"""Transactions of a log, and rows of each."""

ARCHIVED_SECONDS: Final = 300.0
TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Measured:
    """One way through one log. ``ratio``: its rate divided by that of the invalidator.
    ``service_cpu_seconds``: CPU seconds of the process that serves the stream."""

    name: str
    transactions: int
    rows: int
    seconds: float
    cpu_seconds: float
    service_cpu_seconds: float
    rows_per_second: int
    ratio: float


@dataclass(frozen=True, slots=True)
class System:
    """Servers, and the source of the stream. ``service``: the process that serves it."""

    server: DatabaseServer
    nodes: tuple[str, ...]
    config: Config
    folder: Path
    url: str
    service: InvalidatorProcess

    @property
    def ways(self) -> Mapping[str, Mapping[str, str]]:
        """Options of the update stream, by name."""
        archive, service = {"path": str(self.folder / "stream/archive")}, {"url": self.url}
        return {"archive": {**archive, "keyspace": "shop"}, "service": {**service, "keyspace": "shop"}}

    def wait_archived(self, log: Log) -> None:
        [lineage] = self.config.lineages

        def has_all() -> bool:
            held = find_resume(self.folder / "stream/archive", "shop").get(lineage)
            return held is not None and held.position.contains(log.end)

        wait_until(has_all, "the archive has the log", self.service.log, seconds=ARCHIVED_SECONDS)


@contextmanager
def open_system(folder: Path) -> Iterator[System]:
    """A primary, two nodes, and an invalidator that archives and serves the stream."""
    with ExitStack() as stack:
        server = stack.enter_context(open_server(FLAVOR))
        nodes = tuple(node.address for node in stack.enter_context(open_nodes(2)))
        port = find_free_port()
        http = f'[http]\nlisten = "127.0.0.1:{port}"\n[archive]\npath = "archive"\nrotate_seconds = 1\n'
        paths = {}
        for name, extra in (("stream", http), ("sink", "")):
            (folder / name).mkdir(parents=True)
            options = {"namespace": name, "lease_seconds": 5, "max_staleness_seconds": 60}
            paths[name] = write_config(
                folder / name, FLAVOR, server.url, nodes, objects=OBJECT, cache=options, stripes=None, extra=extra
            )
        service = stack.enter_context(InvalidatorProcess(paths["stream"]))
        yield System(server, nodes, load_config(paths["sink"]), folder, f"http://127.0.0.1:{port}", service)


def measure(session: SparkSession, system: System, name: str, transactions: int, rows: int) -> list[Measured]:
    """Write a log and take it in all ways. Raises `AssertionError` if one of them misses a part."""
    log = write_log(system.server, name, transactions, rows)
    system.wait_archived(log)
    [shard] = system.config.keyspaces["shop"].shards
    since = str(EventToken(shard.lineage, shard.name, 1, 0, log.start))
    found: list[Measured] = []

    def note(title: str, work: Callable[[], None]) -> None:
        service, cpu, begun = cpu_seconds(system.service.pid), _own_cpu_seconds(), time.perf_counter()
        work()
        seconds = time.perf_counter() - begun
        rate = log.rows / seconds
        first = found[0].rows / found[0].seconds if found else rate
        spent = _own_cpu_seconds() - cpu, cpu_seconds(system.service.pid) - service
        found.append(
            Measured(
                *(title, transactions, log.rows, round(seconds, 2), round(spent[0], 2), round(spent[1], 2)),
                *(round(rate), round(rate / first, 3)),
            )
        )
        print(found[-1], file=sys.stderr)

    namespace = f"own{name}"
    with open_pipeline(address_of(system.server), FLAVOR, system.nodes, log.start, namespace=namespace) as own:
        note("invalidator", lambda: own.follow_to(log.end))
    for way, options in system.ways.items():
        source = {**options, "since": since}
        note(f"source, {way}", partial(_read, session, source, log))
        # Nodes of a previous measurement have not acknowledged the transactions in between.
        cache = replace(system.config.cache, namespace=f"{way}{name}")
        config = replace(system.config, cache=cache)
        with open_sink(session, config) as keeper:
            keeper.begin()
            _put_stripes(config)
            note(f"sink, {way}", partial(_sink, session, config, keeper, source))
            assert keeper.items >= log.rows, (keeper.items, log)
            acknowledger = keeper.lineages[shard.lineage].acknowledger
            assert acknowledger.streamed.contains(log.end), "the sink has not all of the log"
            assert len(acknowledger.joined) == len(system.nodes), "a node was lost"
    return found


def _sink(session: SparkSession, config: Config, keeper: Keeper, source: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory() as checkpoint:
        sink.start_query(session, config, keeper, source, checkpoint, trigger_seconds=None).awaitTermination()


def _read(session: SparkSession, source: Mapping[str, str], log: Log) -> None:
    updatestream.register(session)
    frame = session.readStream.format(updatestream.NAME).options(**source).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = updatestream.start_query(writer.trigger(availableNow=True))
        query.awaitTermination()
        taken = sum(progress["numInputRows"] for progress in query.recentProgress)
        assert taken >= log.rows, (taken, log)


def _put_stripes(config: Config) -> None:
    """All stripes of the lives that the nodes have now, as they are some time after a life began."""
    [lineage] = config.lineages
    for address in config.cache.nodes:
        node = MemcachedNode(address)
        [reply] = node.perform([Get(record_key(config.cache.namespace, lineage), is_bound=True)])
        record = find_record(reply, node.name)
        assert record is not None, "it was joined before"
        put_stripes(node, config.cache.namespace, lineage, empty_position(FLAVOR), record.life)
        node.close()


def cpu_seconds(pid: int) -> float:
    """Of a process and of all that it has started, those that have ended among them."""
    total = 0
    for each in (pid, *(child for child, _ in find_descendants(pid))):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended; its parent counts it
        total += sum(map(int, fields[11:15]))
    return total / TICKS


def _own_cpu_seconds() -> float:
    """Of this process and its JVM with its Python processes: servers that it has started are left out."""
    java = [pid for pid, command in find_descendants(os.getpid()) if "SparkSubmit" in command]
    return time.process_time() + sum(map(cpu_seconds, java[:1]))


def main(arguments: Sequence[str] | None = None, session: SparkSession | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.sink", description="Measure the sink and its source.")
    parser.add_argument("--transactions", type=int, help="of one log, in place of those that are usual")
    parser.add_argument("--rows", type=int, default=1, help="of each transaction, by default 1")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--master", default="local[2]", help="the Spark master, by default local[2]")
    options = parser.parse_args(arguments)
    logs = LOGS if options.transactions is None else ((options.transactions, options.rows),)
    found: list[Measured] = []
    with ExitStack() as stack:
        used = session
        if used is None:
            used = open_session("benchmark", options.master, BATCH_ROWS)
            stack.callback(used.stop)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        system = stack.enter_context(open_system(folder))
        measure(used, system, "warm", *WARM)
        for number, (transactions, rows) in enumerate(logs):
            found += measure(used, system, str(number), transactions, rows)
    if options.json:
        told = {"machine": describe_machine(), "results": [asdict(each) for each in found]}
        print(json.dumps(told, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
