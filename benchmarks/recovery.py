"""How long the cache is away after a trouble has ended, with default times: a start, a node that restarted, nodes
that were flushed, an invalidator that began again after its lease, a primary that was succeeded.

Each of 100 keys is read five times a second. The end of a trouble is the moment at which its server answers again, at
which the invalidator is launched, or at which the promoted server takes writes.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from appclient import ReadOutcome
from benchmarks.measure import Criterion, Result, paced
from integration.configuration import write_config
from integration.harness import CUSTOMERS_TABLE, System, wait_until
from integration.servers import Flavor, Memcached, Pair, database_pair
from integration.servers.program import InvalidatorProcess

KEYS: Final = tuple(range(100))
READS: Final = 500
"""In a second."""

FIRST_SECONDS: Final = 2.0
MOST_SECONDS: Final = 4.0
MOST: Final = 0.9
CRITERION: Final = Criterion(at_most=1.0)

Recovered = tuple[float, float]
"""Seconds from the end of a trouble to the first hit, and until nine tenths of the keys were hits when last read: 0
if they always were."""


def measure_recovery(rounds: int, *, flavor: Flavor = "mariadb") -> list[Result]:
    """Each trouble comes once in a round. A result is of the median round, against the time that is asked for."""
    found: dict[str, list[Recovered]] = {}
    for _ in range(rounds):
        for name, is_lossless in (("failover", False), ("failover_lossless", True)):
            with database_pair(flavor) as pair, TemporaryDirectory() as folder, ExitStack() as stack:
                scene = Scene(pair, Path(folder), is_lossless, stack)
                troubles = (
                    {"start": scene.start}
                    if is_lossless
                    else {
                        "start": scene.start,
                        "node": scene.restart_node,
                        "flush": scene.flush,
                        "lease": scene.lapse,
                    }
                )
                for trouble, run in {**troubles, name: scene.fail_over}.items():
                    found.setdefault(trouble, []).append(run())
    suffix = "" if flavor == "mariadb" else f"_{flavor}"
    return [
        Result(f"recovery_{trouble}_{part}{suffix}", value, "s", "asked for", least,
               (min(values) / least, max(values) / least), CRITERION)
        for trouble, each in found.items()
        for part, least, values in zip(
            ("first", "most"), (FIRST_SECONDS, MOST_SECONDS), map(sorted, zip(*each, strict=True)), strict=True)
        for value in (values[len(values) // 2],)
    ]  # fmt: skip


class Scene:
    """A pair, two nodes, an invalidator that is not launched, and a client that reads the keys in turn."""

    def __init__(self, pair: Pair, folder: Path, is_lossless: bool, stack: ExitStack) -> None:
        self.pair, self.is_lossless = pair, is_lossless
        pair.primary.execute(CUSTOMERS_TABLE, database="shop")
        rows = ", ".join(f"({key}, 'c', 0)" for key in KEYS)
        pair.primary.execute(f"INSERT INTO customers VALUES {rows}", database="shop")
        if pair.primary.flavor == "mariadb":  # else app, as whom heartbeats are written, is above read_only
            with pair.primary.connect(user="root") as connection, connection.cursor() as cursor:
                cursor.execute("REVOKE READ_ONLY ADMIN ON *.* FROM app@'%'")
        pair.wait_caught_up()
        pair.replica.set_read_only(1)
        nodes = [stack.enter_context(Memcached()) for _ in range(2)]
        path = write_config(
            folder, pair.primary.flavor, pair.primary.url, [node.address for node in nodes],
            replicas=[pair.replica.url], stripes=None,
            shard={"adopt_promotions": True, "lossless_failover": is_lossless},
        )  # fmt: skip
        self.invalidator = InvalidatorProcess(path)
        stack.callback(self.invalidator.stop)
        self.system = System(pair, nodes, path, self.invalidator)
        self.cache = stack.enter_context(closing(self.system.open_cache()))
        self.seen: list[tuple[float, int, bool]] = []
        """Of each read since the last trouble: when it began, its key, and whether it was a hit."""
        stack.enter_context(paced(self._read, READS))

    def _read(self) -> None:
        key, begun = KEYS[len(self.seen) % len(KEYS)], time.monotonic()
        self.seen.append((begun, key, self.cache.get("customer", key, explain=True).outcome is ReadOutcome.HIT))

    def _wait(self, ended: float, keys: Collection[int] = KEYS) -> Recovered:
        """By reads of these keys that began after the trouble ended, until all keys are hits. The last moments
        without a hit and with too few count: hits may go on for a while before they end."""
        begun = len(self.seen)
        wait_until(
            lambda: len(self.seen) >= begun + len(KEYS) and all(self._last()), "all are hits", self.invalidator.log
        )
        hits, first, most = dict.fromkeys(keys, False), 0.0, 0.0
        for at, key, is_hit in [*self.seen]:
            if at > ended and key in hits:
                hits[key] = is_hit
                if not any(hits.values()):
                    first = at - ended
                if sum(hits.values()) < MOST * len(hits):
                    most = at - ended
        return first, most

    def _last(self) -> list[bool]:
        return [is_hit for *_, is_hit in self.seen[-len(KEYS) :]]

    def start(self) -> Recovered:
        began = time.monotonic()
        self.invalidator.launch()
        return self._wait(began)

    def restart_node(self) -> Recovered:
        node = self.system.nodes[0]
        node.restart()
        return self._wait(
            time.monotonic(), [key for key in KEYS if self.system.subject("customer", key).node == node.address]
        )

    def flush(self) -> Recovered:
        for node in self.system.nodes:
            node.ask("flush_all")
        return self._wait(time.monotonic())

    def lapse(self) -> Recovered:
        self.invalidator.kill()
        wait_until(lambda: not any(self._last()), "the lease has run out")
        return self.start()

    def fail_over(self) -> Recovered:
        """A crash. Unless it is stated to be lossless, the invalidator begins new lives, as nobody confirms it."""
        lives = set(self.system.lives().values())
        self.pair.wait_caught_up()
        self.pair.primary.kill()
        self.pair.replica.remove_sources()
        self.pair.replica.set_read_only(0)
        ended = time.monotonic()
        wait_until(lambda: "adopted: " in self.invalidator.log(), "it is adopted", self.invalidator.log)
        if not self.is_lossless:
            wait_until(lambda: lives.isdisjoint(self.system.lives().values()), "lives are new", self.invalidator.log)
        return self._wait(ended)
