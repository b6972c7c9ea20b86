"""The servers and programs of a run, as its faults strike them: a primary with two replicas, cache nodes, each behind
a `Link`, two invalidators and the applications. All are private, and end with the run.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from appclient import NodeUnavailable
from examples.demo.evidence import ArchiveProcess
from freshness.algorithm.envelope import find_record, record_key
from freshness.algorithm.request import Get
from freshness.config.config import load_config
from freshness.nodes.open import open_node
from freshness.stream.heartbeat import HEARTBEAT_TABLE
from integration.chaos.journal import Journal, now_us
from integration.chaos.shop import CACHE, NOTES, OBJECTS, TABLES, Writer, load_statements
from integration.configuration import write_config
from integration.harness import CACHE as SHORT
from integration.harness import STREAM, repeating, wait_until
from integration.servers import DatabaseServer, Flavor, Memcached, Redis
from integration.servers.database import SCHEMA, SEMISYNCHRONOUS, make_database
from integration.servers.link import Link
from integration.servers.program import InvalidatorProcess, PythonProgram
from invalidator.process.status import read_nodes

LINEAGE: Final = "shop/-"
MODES: Final = ("threads", "tasks", "sessions", "models")
WATCH_SECONDS: Final = 0.01
CLERK_SECONDS: Final = 0.05
SUPERVISE_SECONDS: Final = 0.5
QUIET_SECONDS: Final = 2
"""No note is written so long before a TRUNCATE, so that many are hits, and after it, so that an old one shows."""
DELAY_SECONDS: Final = 1
"""By which the replicas are late."""

NODE_KINDS: Final[dict[str, Any]] = {
    "memcached": lambda: Memcached(memory_mb=8),
    "memcached-plain": lambda: Memcached(memory_mb=8, options=("-o", "no_modern")),
    "redis": lambda: Redis(options=("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru")),
}


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is. ``bug``: the name of a defence that is taken out. A run that ``is_recorded`` can be audited. In
    one that ``is_semisynchronous`` a commit waits for a replica."""

    seconds: int = 60
    seed: int = 1
    flavor: Flavor = "mariadb"
    cache: str = "memcached"
    bug: str = ""
    is_recorded: bool = False
    is_semisynchronous: bool = False


class Dated(PythonProgram):
    """Its wall clock is ahead by so much when it is started."""

    ahead_seconds = 0.0

    def command(self) -> list[str]:
        command = super().command()
        if self.ahead_seconds:
            place = command.index("-m") + 1
            command[place:place] = ["integration.chaos.misdated", str(self.ahead_seconds)]
        return command


class Invalidator(Dated, InvalidatorProcess):
    def __init__(self, path: Path, bug: str) -> None:
        super().__init__(path)
        self._arguments = with_bug(bug, *self._arguments)


class Application(Dated):
    technology = "application"

    def is_ready(self) -> bool:
        return True


def with_bug(bug: str, *arguments: str) -> tuple[str, ...]:
    """Arguments of Python, which begin with ``-m MODULE``."""
    return ("-m", "integration.chaos.planted", bug, *arguments[1:]) if bug else arguments


@dataclass
class Scene:
    """``databases``: the primary first, then the replicas. ``links``: by the server's own port. ``taken``: the
    parts that a fault is striking."""

    folder: Path
    options: Options
    journal: Journal
    databases: list[DatabaseServer]
    nodes: list[Memcached | Redis]
    links: dict[int, Link]
    invalidators: list[Invalidator] = field(default_factory=list)
    applications: list[Application] = field(default_factory=list)
    archive: ArchiveProcess | None = None
    writing: threading.Lock = field(default_factory=threading.Lock)
    taken: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.path = self.folder / "freshness.toml"
        self.write_file()
        self._writer = Writer(self.folder, self.options.flavor, self.journal)
        self._chance = random.Random(f"{self.options.seed} clerk")

    @property
    def primary(self) -> DatabaseServer:
        return self.databases[0]

    def set_primary(self, server: DatabaseServer | None) -> None:
        """The applications write to this server from now on, and to none if it is None."""
        draft = self.folder / "primary.draft"
        draft.write_text("" if server is None else str(server.port))
        draft.replace(self.folder / "primary")

    def write_file(self) -> None:
        """freshness.toml, by the roles that the databases have; in one piece, since programs start at any time."""
        draft = self.folder / "draft"
        draft.mkdir(exist_ok=True)
        urls = [f"mysql://app:app@127.0.0.1:{self.links[each.port].port}/{SCHEMA}" for each in self.databases]
        written = write_config(
            draft,
            self.options.flavor,
            urls[0],
            [f"127.0.0.1:{self.links[each.port].port}" for each in self.nodes],
            replicas=urls[1:],
            shard={"adopt_promotions": True},
            objects=OBJECTS,
            cache={**SHORT, **CACHE, "backend": self.options.cache.partition("-")[0]},
            stream=STREAM,
            extra='[history]\npath = "history"\n' if self.options.is_recorded else "",
        )
        self.config = load_config(written.replace(self.path))

    def promote(self, chosen: DatabaseServer, others: list[DatabaseServer], begin: int) -> None:
        """Make it the primary of these others, whose commits it has. A previous one that is not among them is
        gone."""
        chosen.remove_sources()
        kept = dict(chosen.execute("SELECT CONCAT('group ', id DIV 2), v FROM customers", database=SCHEMA))
        self.journal.write("promotion", begin=begin, at=now_us(), kept=kept)
        for each in others:
            if each is self.primary and each.flavor == "mariadb":
                with each.connect(user="root") as connection, connection.cursor() as cursor:
                    cursor.execute("SET GLOBAL gtid_slave_pos = @@global.gtid_binlog_pos")
            each.replicate_from(chosen, delay_seconds=DELAY_SECONDS)
        if self.primary not in others:
            self.gone = {f"database {len(self.databases) - 1}"}
        self.databases = [chosen, *others]
        chosen.set_read_only(0)
        self.set_primary(chosen)

    def name_primary(self) -> None:
        """In the file, as an operator does after a promotion; the applications load it."""
        self.write_file()
        for application in self.applications:
            application.terminate()
            application.launch()
        self.journal.write("named", at=now_us())

    def write_note(self) -> None:
        time.sleep(CLERK_SECONDS)
        note = self._chance.randrange(NOTES)
        with self.writing:
            version = now_us()
            value = None if self._chance.random() < 0.3 else version
            statement = (
                f"DELETE FROM notes WHERE id = {note}"
                if value is None
                else f"REPLACE INTO notes VALUES ({note}, {version})"
            )
            self._writer.commit({f"note {note}": value}, version, [statement])

    def execute(self, sql: str) -> None:
        """On the primary."""
        self.primary.execute(sql, database=SCHEMA)

    def truncate_notes(self) -> None:
        with self.writing:
            time.sleep(QUIET_SECONDS)
            self._writer.commit({f"note {note}": None for note in range(NOTES)}, now_us(), ["TRUNCATE TABLE notes"])
            time.sleep(QUIET_SECONDS)

    def supervise(self) -> None:
        """Start an invalidator that has ended, for example since it was started while no server was writable."""
        time.sleep(SUPERVISE_SECONDS)
        with self.lock:
            for number, invalidator in enumerate(self.invalidators):
                if f"invalidator {number}" not in self.taken and not invalidator.is_running():
                    self.journal.write("ended", log=invalidator.log_tail())
                    invalidator.launch()

    def describe(self) -> str:
        logs = "\n".join(each.log()[-3000:] for each in self.invalidators)
        return "\n".join(map(str, read_nodes(self.config))) + f"\n{logs}"

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Write down what each node says that it has acknowledged, as any client may read it."""
        with ExitStack() as stack:
            for node, name in zip(self.nodes, self.config.cache.nodes, strict=True):
                stack.enter_context(repeating(partial(self._watch, node, name)))
            yield

    def _watch(self, node: Memcached | Redis, name: str) -> None:
        seen, request = None, [Get(record_key(self.config.cache.namespace, LINEAGE), is_bound=True)]
        try:
            with closing(open_node(self.config.cache.access, node.address)) as connection:
                for _ in range(500):
                    [reply] = connection.perform(request)
                    at, record = now_us(), find_record(reply, name)
                    if record is not None and (record.life, record.primary, record.progress) != seen:
                        seen = record.life, record.primary, record.progress
                        shown = {
                            "life": record.life.hex(),
                            "primary": record.primary,
                            "progress": str(record.progress),
                        }
                        self.journal.write("record", node=name, at=at, **shown)
                    time.sleep(WATCH_SECONDS)
        except NodeUnavailable:
            time.sleep(WATCH_SECONDS)  # it is struck, and acknowledges nothing


@contextmanager
def open_scene(folder: Path, options: Options) -> Iterator[Scene]:
    """Everything runs and is open; the applications have begun."""
    with ExitStack() as stack:
        settings = SEMISYNCHRONOUS[options.flavor] * options.is_semisynchronous
        databases = [make_database(options.flavor, server_id=number, options=settings) for number in (1, 2, 3)]
        for database in databases:
            stack.callback(database.stop)
            database.launch()
        for database in databases:
            database.wait_ready()
        prepare(databases)
        nodes = [stack.enter_context(NODE_KINDS[options.cache]()) for _ in range(2)]
        links = {server.port: stack.enter_context(Link(server.port)) for server in (*databases, *nodes)}
        scene = Scene(folder, options, Journal(folder, "scene"), databases, nodes, links)
        scene.set_primary(scene.primary)
        for _ in range(2):
            scene.invalidators.append(stack.enter_context(Invalidator(scene.path, options.bug)))
        if options.is_recorded:
            scene.archive = stack.enter_context(make_archive(scene))
            scene.execute("CREATE TABLE begun (id INT PRIMARY KEY)")  # each read has a transaction of the archive
            for replica in databases[1:]:
                replica.wait_caught_up(scene.primary)
        for index, mode in enumerate(MODES):
            words = (f"application{index}", mode, index, len(MODES), options.seed, folder, options.flavor)
            module = with_bug(options.bug, "-m", "integration.chaos.client", *map(str, words))
            scene.applications.append(stack.enter_context(Application(*module)))
        stack.enter_context(scene.watching())
        stack.enter_context(repeating(scene.write_note))
        stack.enter_context(repeating(scene.supervise))
        yield scene


def make_archive(scene: Scene) -> ArchiveProcess:
    """The changes, from the log of the replica that is never promoted."""
    server, recorded = scene.databases[-1], scene.folder / "recorded"
    created = f"SHOW TABLES LIKE '{HEARTBEAT_TABLE}'"
    wait_until(lambda: server.execute(created, database=SCHEMA), "the replica has the table of heartbeats")
    recorded.mkdir()
    nodes = scene.config.cache.nodes
    path = write_config(recorded, server.flavor, server.url, nodes, objects=OBJECTS, cache=CACHE, stream=STREAM)
    return ArchiveProcess(path, scene.folder / "archive")


def prepare(databases: list[DatabaseServer]) -> None:
    primary, *replicas = databases
    primary.execute(f"CREATE DATABASE {SCHEMA}")
    for statement in (*TABLES, *load_statements()):
        primary.execute(statement, database=SCHEMA)
    if primary.flavor == "mariadb":  # else app, as whom the invalidators write, is above read_only
        with primary.connect(user="root") as connection, connection.cursor() as cursor:
            cursor.execute("REVOKE READ_ONLY ADMIN ON *.* FROM app@'%'")
    for replica in replicas:
        replica.replicate_from(primary)
        replica.wait_caught_up(primary)
        replica.set_read_only(1)
        replica.replicate_from(primary, delay_seconds=DELAY_SECONDS)
