"""What the demo runs on: a primary, a replica that lags on purpose or none, two cache nodes, the invalidator.

Everything is private, on loopback, under a temporary directory, and stopped when `open_world` is left; should
this process be killed, the watchdog of ``integration.servers`` stops it. A server that dies during the run is
named, with the end of its log, by `World.check`.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymysql

from examples.demo.databases import Flavor, MysqlServers, open_databases
from examples.demo.interrupted import InterruptedReader
from examples.demo.progress_watcher import READY
from examples.demo.strategy import EVENT_TOKENS, STRATEGIES, open_client
from examples.demo.workload import Plan, create_tables
from freshness.config.config import Config, load_config
from integration.configuration import CUSTOMER, PROFILE, write_config
from integration.servers import Memcached, Redis, ServerFailed, ServerProcess
from integration.servers.program import InvalidatorProcess, PythonProgram

if TYPE_CHECKING:
    from examples.demo.evidence import ArchiveProcess

CHECKOUT = Path(__file__).resolve().parent.parent.parent
KEYSPACE = "shop"
LINEAGE = f"{KEYSPACE}/-"
NODE_MEGABYTES = 64
REPORT_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class NodeKind:
    """The cache nodes of a run. ``stripes``: None for as many as by default.

    ``is_managed``: servers as a cloud starts them: memcached with ``-o no_modern``, or a Redis that evicts
      and hides CONFIG.
    """

    backend: str = "memcached"
    is_managed: bool = False
    megabytes: int | None = None
    stripes: int | None = None

    def make(self) -> Memcached | Redis:
        """A node that is not started yet."""
        megabytes = self.megabytes or NODE_MEGABYTES
        if self.backend == "memcached":
            return Memcached(memory_mb=megabytes, options=("-o", "no_modern") if self.is_managed else ())
        managed = ("--maxmemory-policy", "allkeys-lru", "--rename-command", "CONFIG", "")
        return Redis(options=("--maxmemory", f"{megabytes}mb", *(managed if self.is_managed else ())))

    @property
    def settings(self) -> dict[str, Any]:
        """The keys of the section ``cache`` that it needs."""
        return {"backend": self.backend}


class ReportingProcess(PythonProgram):
    """The stream deleter or the progress watcher. Ready when it says so; `receive` brings the lines of its report."""

    def __init__(self, technology: str, module: str, settings: dict[str, Any]) -> None:
        self.technology = technology
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(REPORT_POLL_SECONDS)
        self._connection: socket.socket | None = None
        self._pending = b""
        self._early: list[str] = []
        whole = settings | {"report_port": self._listener.getsockname()[1]}
        super().__init__("-m", module, json.dumps(whole))

    def is_ready(self) -> bool:
        if self._connection is None:
            self._connection, _ = self._listener.accept()
            self._connection.settimeout(REPORT_POLL_SECONDS)
        lines = self._receive()
        self._early += [line for line in lines if line != READY]
        return READY in lines

    def _receive(self) -> list[str]:
        """The lines that have arrived; none after a while without any."""
        assert self._connection is not None
        try:
            received = self._connection.recv(65536)
        except TimeoutError:
            return []
        if not received:
            time.sleep(REPORT_POLL_SECONDS)  # it has ended: `World.check` will say so
        *lines, self._pending = (self._pending + received).split(b"\n")
        return [line.decode() for line in lines]

    def receive(self, report: Callable[[str], None], stopping: threading.Event) -> None:
        """Pass on every line until ``stopping``."""
        for line in self._early:
            report(line)
        while not stopping.is_set():
            for line in self._receive():
                report(line)

    def stop(self) -> None:
        super().stop()
        self._listener.close()
        if self._connection is not None:
            self._connection.close()


@dataclass(frozen=True, slots=True)
class World:
    """Everything that runs, ready for the workload."""

    databases: MysqlServers
    nodes: tuple[Memcached | Redis, ...]
    invalidator: InvalidatorProcess
    stream_deleter: ReportingProcess
    progress_watcher: ReportingProcess
    config_path: Path
    config: Config
    interrupted: tuple[InterruptedReader, ...] = ()
    archives: Mapping[str, ArchiveProcess] = field(default_factory=dict)
    history: Path | None = None

    def open_client(self) -> Any:
        """What the strategies without tokens use."""
        return open_client(self.config.cache.nodes, self.config.cache.backend)

    def check(self) -> None:
        """Raise `ServerFailed`, with the end of its log, if something has died."""
        named: list[tuple[str, ServerProcess]] = [
            ("the primary", self.databases.primary),
            *([("the replica", self.databases.replica)] if self.databases.replica else []),
            *((f"{node.technology} {node.address}", node) for node in self.nodes),
            ("the invalidator", self.invalidator),
            ("the stream deleter", self.stream_deleter),
            ("the progress watcher", self.progress_watcher),
            *(("an interrupted reader", reader) for reader in self.interrupted),
            *((f"the archive of {name}", archive) for name, archive in self.archives.items()),
        ]
        for name, server in named:
            if not server.is_running():
                raise ServerFailed(
                    f"{name} died during the run; the end of its log:\n{server.log_tail()}",
                    hint="nothing was measured; a log that ends in the middle means that it was killed",
                )


@contextmanager
def open_world(
    flavor: Flavor, plan: Plan, say: Callable[[str], None], kind: NodeKind, history: Path | None = None
) -> Iterator[World]:
    """Start everything, and stop everything at the end, however it comes. ``history``: folder that records
    the run."""
    with ExitStack() as stack:
        servers = "primary and its replica" if plan.has_replica else "primary"
        say(f"starting a {flavor} {servers}, two {kind.backend} nodes")
        nodes = kind.make(), kind.make()
        for node in nodes:
            stack.enter_context(node)
        databases = stack.enter_context(open_databases(flavor, has_replica=plan.has_replica, topology=plan.topology))
        with pymysql.connect(**databases.writing()) as connection:
            create_tables(connection, plan)
        databases.wait_caught_up()
        databases.delay()
        say(f"{'the replica now lags 1 to 2 s; ' if plan.has_replica else ''}starting the invalidator")
        addresses = [node.address for node in nodes]
        config_path = write_config(
            nodes[0].directory,
            flavor,
            databases.primary_url,
            addresses,
            replicas=databases.replica_urls,
            shard=databases.shard,
            objects=CUSTOMER + ("fill_from_log = true\n" if plan.fills_from_log else "") + PROFILE,
            cache={"namespace": EVENT_TOKENS, **kind.settings},
            stripes=kind.stripes,
            extra=f'[history]\npath = "{history / EVENT_TOKENS / "history"}"\n' if history else "",
        )
        # Nodes of a size that was asked for may be too small for all stripes
        invalidator = stack.enter_context(InvalidatorProcess(config_path, needs_stripes=kind.megabytes is None))
        deleter = ReportingProcess(
            "stream deleter",
            "examples.demo.stream_deleter",
            {
                "namespace": "delete_from_stream",
                "nodes": addresses,
                "backend": kind.backend,
                "flavor": databases.gtid_flavor,
                "server": databases.server_settings(databases.primary),
            },
        )
        stack.enter_context(deleter)
        watcher = ReportingProcess(
            "progress watcher", "examples.demo.progress_watcher", {"config": str(config_path), "lineage": LINEAGE}
        )
        stack.enter_context(watcher)
        archives = {}
        if history is not None:
            say(f"recording the run under {history}")
            from examples.demo.evidence import ArchiveProcess, with_namespace

            for name in STRATEGIES:
                process = ArchiveProcess(with_namespace(config_path, name), history / name / "archive")
                archives[name] = stack.enter_context(process)
            # Each later read has at least one transaction of the archives: nothing older is cached
            databases.primary.execute("CREATE TABLE begun (id INT PRIMARY KEY)", database=databases.schema)
        databases.wait_caught_up()
        config = load_config(config_path)
        interrupted = tuple(InterruptedReader(config_path, plan, number) for number in range(plan.interrupted))
        for reader in interrupted:
            stack.enter_context(reader)
        yield World(
            databases, nodes, invalidator, deleter, watcher, config_path, config, interrupted, archives, history
        )
