"""The faults of a run: each begins, lasts, and ends, and leaves the scene as it was. A seed draws them."""

from __future__ import annotations

import random
import resource
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from integration.chaos.journal import now_us
from integration.chaos.scene import MODES, Dated, Scene
from integration.chaos.shop import COLUMNS
from integration.servers import DatabaseServer, ServerProcess, link

Fault = Callable[[Scene, random.Random, str], AbstractContextManager[None]]
SHORT: Final = 1.0, 4.0
LONG: Final = 5.0, 20.0
"""Seconds that a fault lasts: shorter than a lease, and longer than `max_staleness_seconds`."""
BETWEEN: Final = 0.5, 2.0
ANSWER_SECONDS: Final = 30.0
LOST_SECONDS: Final = 2.0
AHEAD: Final = (-3600.0, -3.0, -0.5, 0.5, 3.0, 3600.0)
CROWD: Final = ((60, 20_000), (250, 10_000), (1_200, 4_000))
"""Bytes and number of a stranger's values: as large as stripes, entries, and parts."""


def find_process(scene: Scene, target: str) -> ServerProcess:
    kind, number = target.split()
    of_kind: dict[str, Sequence[ServerProcess]] = {
        "node": scene.nodes,
        "invalidator": scene.invalidators,
        "application": scene.applications,
        "database": scene.databases,
        "archive": [] if scene.archive is None else [scene.archive],
    }
    process = of_kind[kind][int(number)]
    if kind == "invalidator" and not process.is_running():
        process.launch()  # before its supervisor does
    return process


@contextmanager
def killed(scene: Scene, chance: random.Random, target: str) -> Iterator[None]:
    process = find_process(scene, target)
    process.kill()
    try:
        yield
    finally:
        process.launch()
        if not target.startswith("invalidator"):
            process.wait_ready()
        if isinstance(process, DatabaseServer) and process is not scene.primary:
            process.set_read_only(1)
            process.start_replication()
        elif isinstance(process, DatabaseServer):
            process.set_read_only(0)


@contextmanager
def stopped(scene: Scene, chance: random.Random, target: str) -> Iterator[None]:
    process = find_process(scene, target)
    process.pause()
    try:
        yield
    finally:
        process.resume()


@contextmanager
def restarted(scene: Scene, chance: random.Random, target: str) -> Iterator[None]:
    """As in a rolling restart."""
    process = find_process(scene, target)
    process.terminate()
    process.launch()
    yield


@contextmanager
def misdated(scene: Scene, chance: random.Random, target: str) -> Iterator[None]:
    """Its machine's clock is wrong, by less or by more than `clock_skew_seconds` allows."""
    process = find_process(scene, target)
    assert isinstance(process, Dated)
    process.terminate()
    process.ahead_seconds = chance.choice(AHEAD)
    process.launch()
    try:
        yield
    finally:
        if process.is_running():  # an invalidator may have ended
            process.terminate()
        process.ahead_seconds = 0.0
        process.launch()


@contextmanager
def filled(scene: Scene, chance: random.Random, target: str) -> Iterator[None]:
    """The disk of its files is full, its log's, too. (The kernel refuses the write with another number.)"""
    process = find_process(scene, target)
    soft, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        if process.is_running():
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (soft, hard))
        else:
            process.launch()


def send_to_node(process: ServerProcess, requests: Iterable[bytes]) -> None:
    """As a stranger, who waits for the last answer alone."""
    ping, pong = (b"version\r\n", b"VERSION") if process.technology == "memcached" else (b"PING\r\n", b"PONG")
    with socket.create_connection(("127.0.0.1", process.port), ANSWER_SECONDS) as connection:
        connection.sendall(b"".join(requests))
        connection.sendall(ping)
        answer = b""
        while pong not in answer:
            answer = answer[-len(pong) :] + (received := connection.recv(1 << 16))
            assert received, f"{process.technology} closed the connection"


@contextmanager
def flushed(scene: Scene, chance: random.Random, target: str) -> Iterator[None]:
    node = find_process(scene, target)
    send_to_node(node, [b"flush_all\r\n" if node.technology == "memcached" else b"FLUSHALL\r\n"])
    yield


@contextmanager
def crowded(scene: Scene, chance: random.Random, target: str) -> Iterator[None]:
    """A stranger stores so much that the node has to evict entries, stripes, and its record."""
    node = find_process(scene, target)
    command = b"set %016d 0 0 %d noreply\r\n%b\r\n" if node.technology == "memcached" else b"SET %016d %b\r\n"
    for size, count in CROWD:
        numbers = range(count)
        junk = (b"j" * size,) if node.technology != "memcached" else (size, b"j" * size)
        send_to_node(node, (command % (number, *junk) for number in numbers))
    yield


@contextmanager
def severed(scene: Scene, chance: random.Random, target: str) -> Iterator[None]:
    """The network to a node or a database fails, for every second connection or for all."""
    way = scene.links[find_process(scene, target).port]
    with way.failing(chance.choice(link.FAULTS), is_whole=chance.random() < 0.5):
        yield


@contextmanager
def lagging(scene: Scene, chance: random.Random, target: str) -> Iterator[None]:
    replica = scene.databases[int(target.split()[1])]
    replica.stop_applying()
    try:
        yield
    finally:
        replica.start_replication()


@contextmanager
def truncated(scene: Scene, chance: random.Random, target: str) -> Iterator[None]:
    scene.truncate_notes()
    yield


@contextmanager
def altered(scene: Scene, chance: random.Random, target: str) -> Iterator[None]:
    scene.execute(f"ALTER TABLE {target} ADD COLUMN spare INT DEFAULT {chance.randrange(100)}")
    try:
        yield
    finally:
        scene.execute(f"ALTER TABLE {target} DROP COLUMN spare")


@contextmanager
def swapped(scene: Scene, chance: random.Random, target: str) -> Iterator[None]:
    """As pt-osc alters a table: triggers copy each change to another table, which takes its place. (gh-ost ends with
    the same RENAME.)"""
    new, old = f"{target}_new", f"{target}_old"
    copy = ", ".join(f"NEW.{column}" for column in COLUMNS[target])
    for table in (new, old):
        scene.execute(f"DROP TABLE IF EXISTS {table}")
    scene.execute(f"CREATE TABLE {new} LIKE {target}")
    for event in ("INSERT", "UPDATE"):
        change = f"REPLACE INTO {new} VALUES ({copy})"
        scene.execute(f"CREATE TRIGGER {target}_{event.lower()} AFTER {event} ON {target} FOR EACH ROW {change}")
    change = f"DELETE FROM {new} WHERE id = OLD.id"
    scene.execute(f"CREATE TRIGGER {target}_delete AFTER DELETE ON {target} FOR EACH ROW {change}")
    scene.execute(f"INSERT IGNORE INTO {new} SELECT * FROM {target} LOCK IN SHARE MODE")
    yield
    scene.execute(f"RENAME TABLE {target} TO {old}, {new} TO {target}")
    scene.execute(f"DROP TABLE {old}")


@contextmanager
def purged(scene: Scene, chance: random.Random, target: str) -> Iterator[None]:
    """No invalidator has read the end of a log that is purged."""
    invalidators = [find_process(scene, each) for each in INVALIDATORS]
    for invalidator in invalidators:
        invalidator.terminate()
    yield
    scene.execute("FLUSH BINARY LOGS")
    for replica in scene.databases[1:]:
        replica.wait_caught_up(scene.primary)
    *_, last = scene.primary.execute("SHOW BINARY LOGS")
    scene.execute(f"PURGE BINARY LOGS TO '{last[0]}'")
    for invalidator in invalidators:
        invalidator.launch()


@contextmanager
def promoted(scene: Scene, chance: random.Random, target: str) -> Iterator[None]:
    """A planned switchover, which the invalidators adopt. Later the operator edits the file for the applications."""
    begin = now_us()
    previous, chosen, *others = scene.databases
    with scene.writing:
        scene.set_primary(None)
        previous.set_read_only(1)
        for each in (chosen, *others):
            each.wait_caught_up(previous)
        scene.promote(chosen, [previous, *others], begin)
    yield
    scene.name_primary()


def lose(scene: Scene) -> None:
    """The primary dies, and a replica that lacks its last commits takes its place. No other fault is there. The
    operator names the new primary in the file."""
    previous, chosen, *others = scene.databases
    for each in (chosen, *others):
        each.wait_caught_up(previous)  # the end of an ALTER is not lost
    begin = now_us()
    with scene.writing:
        for each in others:
            each.stop_replication()
            chosen.wait_caught_up(each)  # no other one has what the chosen one lacks
        chosen.stop_replication()
        time.sleep(LOST_SECONDS)
        scene.set_primary(None)
        previous.kill()
        scene.promote(chosen, others, begin)
    scene.name_primary()
    with scene.lock:
        for invalidator in scene.invalidators:
            if invalidator.is_running():
                invalidator.reload(scene.config)
    scene.journal.write("fault", name="promotion that loses commits", target="", begin=begin, end=now_us())


NODES: Final = ("node 0", "node 1")
INVALIDATORS: Final = ("invalidator 0", "invalidator 1")
APPLICATIONS: Final = tuple(f"application {number}" for number in range(len(MODES)))
REPLICAS: Final = ("database 1", "database 2")
TABLES: Final = tuple(COLUMNS)
FAULTS: Final[dict[str, tuple[Fault, tuple[str, ...], tuple[float, float]]]] = {
    "kill -9 of an invalidator": (killed, INVALIDATORS, LONG),
    "SIGSTOP of an invalidator": (stopped, INVALIDATORS, LONG),
    "restart of an invalidator": (restarted, INVALIDATORS, SHORT),
    "kill -9 of an application": (killed, APPLICATIONS, SHORT),
    "SIGSTOP of an application": (stopped, APPLICATIONS, SHORT),
    "restart of an application": (restarted, APPLICATIONS, SHORT),
    "wrong clock of an invalidator": (misdated, INVALIDATORS, LONG),
    "wrong clock of an application": (misdated, APPLICATIONS, LONG),
    "full disk of an invalidator": (filled, INVALIDATORS, LONG),
    "full disk of the archive": (filled, ("archive 0",), LONG),
    "kill -9 of a node": (killed, NODES, SHORT),
    "SIGSTOP of a node": (stopped, NODES, SHORT),
    "flush of a node": (flushed, NODES, SHORT),
    "node short of memory": (crowded, NODES, SHORT),
    "network of a node": (severed, NODES, LONG),
    "kill -9 of a replica": (killed, REPLICAS, SHORT),
    "SIGSTOP of a replica": (stopped, REPLICAS, SHORT),
    "replica that lags": (lagging, REPLICAS, LONG),
    "network of a replica": (severed, REPLICAS, LONG),
    "kill -9 of the primary": (killed, ("database 0",), SHORT),
    "SIGSTOP of the primary": (stopped, ("database 0",), SHORT),
    "network of the primary": (severed, ("database 0",), LONG),
    "purge of the log": (purged, ("the log",), SHORT),
    "promotion": (promoted, ("databases",), LONG),
    "TRUNCATE": (truncated, ("notes",), SHORT),
    "ALTER TABLE": (altered, TABLES, SHORT),
    "table swapped by pt-osc": (swapped, TABLES, SHORT),
}
"""What is done, to which of these, and for how long."""


FORGETTING: Final = {
    *("kill -9 of an application", "kill -9 of an invalidator", "full disk of an invalidator"),
    *("wrong clock of an application", "wrong clock of an invalidator"),
}
"""The process loses what it has not written of the history yet, or dates it wrong; then an audit proves nothing."""

DATABASES: Final = {"database 0", *REPLICAS}
PARTS: Final = {
    **{table: {"database 0"} for table in TABLES},
    "databases": {*DATABASES, *APPLICATIONS},
    "the log": {*DATABASES, *INVALIDATORS},
}
"""What a target consists of, if not of itself."""


class Lane:
    """One fault after the other until the end, in an order in which each comes once before any comes again. Two lanes
    strike at the same time, but never the same part."""

    def __init__(self, scene: Scene, seed: str, until: float) -> None:
        self._scene, self._chance, self._until = scene, random.Random(seed), until
        left_out = {"full disk of the archive"} if scene.archive is None else FORGETTING
        self._names = sorted(FAULTS.keys() - left_out)

    def run(self) -> None:
        while True:
            for name in self._chance.sample(self._names, len(self._names)):
                if not self._strike(name):
                    return

    def _strike(self, name: str) -> bool:
        """Return False if no time is left."""
        fault, targets, lasting = FAULTS[name]
        chance = random.Random(self._chance.random())
        target, seconds = chance.choice(targets), chance.uniform(*lasting)
        if not self._wait(chance.uniform(*BETWEEN)):
            return False
        parts = PARTS.get(target, {target}) - self._scene.gone
        if not parts or not self._take(parts):
            return True
        try:
            begin = now_us()
            with fault(self._scene, chance, target):
                self._wait(seconds)
            self._scene.journal.write("fault", name=name, target=target, begin=begin, end=now_us())
        finally:
            with self._scene.lock:
                self._scene.taken -= parts
        return time.monotonic() < self._until

    def _wait(self, seconds: float) -> bool:
        """Wait so long, or until the end; whether there is time left."""
        time.sleep(max(0.0, min(seconds, self._until - time.monotonic())))
        return time.monotonic() < self._until

    def _take(self, parts: set[str]) -> bool:
        """Whether no other fault is striking any of these."""
        with self._scene.lock:
            if parts & self._scene.taken:
                return False
            self._scene.taken |= parts
            return True


def strike(scene: Scene, seconds: float) -> None:
    """Two faults at a time for so long. All have ended on return."""
    until = time.monotonic() + seconds
    lanes = [Lane(scene, f"{scene.options.seed} {number}", until) for number in range(2)]
    with ThreadPoolExecutor(len(lanes)) as pool:
        for running in [pool.submit(lane.run) for lane in lanes]:
            running.result()
