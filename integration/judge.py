"""A judge of rows that are read while processes are killed and nodes come and go: is any read, hit or miss, older
than a change that its node had acknowledged when it began (I1, I10)? Are rows that are read together of one moment
(I11)?

The judge writes the rows itself, one after the other: the n-th write sets ``v`` of a row to n. It watches the records
of nodes: as soon as the progress of a node contains the position after write n, the node has acknowledged n writes.
"""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from appclient import Cache, NodeUnavailable, ReadOutcome
from freshness.algorithm.envelope import find_record, record_key
from freshness.algorithm.request import Get
from freshness.database.connection import Connection, executed_position
from freshness.nodes.open import open_node
from freshness.position import Position
from integration.harness import System, repeating, wait_until
from integration.servers import DatabaseServer, Memcached, Pair
from integration.servers.program import InvalidatorProcess

WRITE_SECONDS: Final = 0.02
WATCH_SECONDS: Final = 0.01
VIOLATIONS_SHOWN: Final = 20
KILLS: Final = 10
ALL_SHOWN: Final = {"on_unknown": "primary", "primary_reads_per_second": 1_000_000}
"""Settings of a cache by which no miss may lack what its node has acknowledged, whatever the node says of it."""


class Judge:
    """``acknowledged``: by node, how many writes. ``outcomes`` and ``hits`` (by node) are of all reads so far, and
    ``together`` of those whose rows are of one moment."""

    def __init__(self, system: System, nodes: Sequence[str], keys: Sequence[int]) -> None:
        self._system, self._nodes, self._keys = system, nodes, keys
        self._access, self._namespace = system.config.cache.access, system.namespace
        self._lineage = system.config.keyspaces["shop"].shards[0].lineage
        self._written: dict[int, list[int]] = {key: [0] for key in keys}
        self._positions: list[Position] = []
        self.acknowledged: Counter[str] = Counter()
        self.outcomes: Counter[ReadOutcome] = Counter()
        self.hits: Counter[str] = Counter()
        self.together: Counter[ReadOutcome] = Counter()
        self.violations: list[str] = []

    def wait_writes(self, count: int) -> None:
        target = len(self._positions) + count
        wait_until(lambda: len(self._positions) >= target, f"{count} rows are written")

    def wait_judged(self, count: int) -> None:
        """Return when each node that serves has acknowledged all writes so far, and given ``count`` more hits."""
        written, nodes = len(self._positions), self._system.config.cache.nodes
        before = self.hits.copy()

        def is_judged() -> bool:
            self.check()
            return all(self.acknowledged[n] >= written and self.hits[n] >= before[n] + count for n in nodes)

        wait_until(is_judged, f"{nodes} give {count} hits more", lambda: f"{self.hits}\n{self._system.describe()}")

    def check(self) -> None:
        assert not self.violations, "\n".join(self.violations[:VIOLATIONS_SHOWN])

    def write(self, connection: Connection) -> None:
        key, number = random.choice(self._keys), len(self._positions) + 1
        with connection.cursor() as cursor:
            cursor.execute("UPDATE customers SET v = %s WHERE id = %s", (number, key))
        self._written[key].append(number)
        self._positions.append(executed_position(connection, self._system.pair.primary.flavor))
        time.sleep(WRITE_SECONDS)

    def watch(self) -> None:
        for address in self._nodes:
            try:
                with closing(open_node(self._access, address)) as node:
                    [reply] = node.perform([Get(record_key(self._namespace, self._lineage), is_bound=True)])
            except NodeUnavailable:
                continue  # it is being restarted, and acknowledges nothing
            record = find_record(reply, address)
            for position in self._positions[self.acknowledged[address] :]:
                if record is None or not record.progress.contains(position):
                    break
                self.acknowledged[address] += 1
        time.sleep(WATCH_SECONDS)

    def read(self, cache: Cache) -> None:
        before = self.acknowledged.copy()
        for key, each in cache.get_many("customer", self._keys, explain=True).items():
            self.outcomes[each.outcome] += 1
            self.hits[each.node] += each.is_hit
            written = self._written[key]
            oldest = written[bisect_right(written, before[each.node]) - 1]
            if each.value["v"] < oldest:
                self.violations.append(f"{key}: {each.outcome} of {each.value}, {each.node} had {oldest}")

    def read_together(self, cache: Cache) -> None:
        """I11: rows of one moment are as the last of their writes left them."""
        found = cache.get_many("customer", self._keys, explain=True, together=True)
        self.together.update(each.outcome for each in found.values())
        last = max(each.value["v"] for each in found.values())
        for key, each in found.items():
            written = self._written[key]
            version = written[bisect_right(written, last) - 1]
            if each.value["v"] not in (version, last):
                self.violations.append(f"{key}: {each.outcome} of {each.value} together with {last}, not {version}")


@contextmanager
def judging(system: System, nodes: Sequence[str], keys: Sequence[int]) -> Iterator[Judge]:
    """Write and watch until the end; then there must be no violation."""
    judge = Judge(system, nodes, keys)
    with (
        system.pair.primary.connect("shop") as connection,
        repeating(lambda: judge.write(connection)),
        repeating(judge.watch),
    ):
        yield judge
    judge.check()


@contextmanager
def judged_client(system: System, judge: Judge) -> Iterator[Cache]:
    """A client that has loaded the file as it is now, and reads until the end."""
    with (
        closing(system.open_cache()) as cache,
        repeating(lambda: judge.read(cache)),
        repeating(lambda: judge.read_together(cache)),
    ):
        yield cache


def survive_kills(system: System, judge: Judge) -> None:
    """The invalidator is killed under writes and reads, often; then each node serves all that is written."""
    chance = random.Random(20)
    for _ in range(KILLS):
        wait_until(system.invalidator.is_streaming, "the invalidator streams", system.describe)
        judge.wait_writes(chance.randrange(5, 40))
        system.invalidator.kill()
        system.invalidator.launch()
    judge.wait_judged(20)


@dataclass
class Writer:
    """Writes for a judge to the server that is the primary now. None: nothing is written, and no commit is under
    way."""

    judge: Judge
    primary: DatabaseServer | None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self) -> None:
        with self.lock:
            if self.primary is not None:
                with self.primary.connect("shop") as connection:
                    self.judge.write(connection)

    def move(self, primary: DatabaseServer | None) -> None:
        with self.lock:
            self.primary = primary


@contextmanager
def judged_moves(
    primary: DatabaseServer, replica: DatabaseServer, node: Memcached, path: Path, keys: Sequence[int]
) -> Iterator[tuple[System, Judge, Writer]]:
    """A system under writes, which can move to another server. The caller reads with `judged_client`."""
    with ExitStack() as stack:
        invalidator = stack.enter_context(InvalidatorProcess(path))
        system = System(Pair(primary, replica), [node], path, invalidator)
        judge = Judge(system, [node.address], keys)
        writer = Writer(judge, primary)
        stack.enter_context(repeating(writer.write))
        stack.enter_context(repeating(judge.watch))
        judge.wait_writes(20)
        yield system, judge, writer
        judge.check()
