"""Whether the cache stays warm while a node comes and goes: hits of each second, beside writes, by clients of the
previous file and of the present one; also if the invalidator, or a node that stays, is killed and started again.

Each second 500 keys are read by either client and 20 customers change. A read that is neither a hit nor moved from a
previous node is one of the database. A node that was killed is empty: keys that either file places there are lost,
and are counted apart.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from itertools import cycle, pairwise
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal
from unittest.mock import patch

from appclient import ReadOutcome
from benchmarks.measure import Criterion, Result, paced
from freshness.algorithm import state
from freshness.keys.placement import Placement
from integration.harness import System, deploy, running_system
from integration.servers import Flavor, Memcached, database_pair

KEYS: Final = tuple(range(1, 1001))
READS: Final = 500
"""Of a client in a second."""

WRITES: Final = 20
QUIET_SECONDS: Final = 10
TTL_SECONDS: Final = 2 * QUIET_SECONDS
"""Of entries that must have expired before a change ends: nodes were removed (docs/operations.md)."""

CRITERION: Final = Criterion(at_least=0.9)
READS_CRITERION: Final = Criterion(at_most=1.2)
WARM: Final = frozenset((ReadOutcome.HIT, ReadOutcome.MOVED))

Seconds = dict[int, Counter[bool]]
"""By second, the number of reads that were warm, and of those that were not."""


def measure_moving(
    _: int,
    *,
    suffix: str = "",
    flavor: Flavor = "mariadb",
    node: type[Any] = Memcached,
    size: Literal[2, 3] = 2,
    victim: Literal["invalidator", "node", ""] = "",
) -> list[Result]:
    """One run, whatever the number of rounds: of two nodes to three and back, or of three to two and back. The victim
    is killed and started while the invalidator loads a file, and once more while there are clients of two files."""
    stays, _, third = nodes = [node(), node(), node()]
    cache = {"backend": node.technology} | ({"value_ttl_seconds": TTL_SECONDS} if size == 3 else {})
    with (
        database_pair(flavor) as pair,
        TemporaryDirectory() as folder,
        running_system(pair, Path(folder), nodes=nodes[:size], cache=cache) as system,
        third if size == 2 else nullcontext(),
    ):
        rows = ", ".join(f"({key}, 'customer {key}', 1)" for key in KEYS)
        system.execute(f"INSERT INTO customers VALUES {rows}")
        lost = _keys_on(system, [each.address for each in nodes]) if victim == "node" else frozenset[int]()
        seconds, kills, clients = (Seconds(), Seconds()), list[float](), deque((ExitStack(), ExitStack()))

        def renew() -> None:
            """The older client ends, and one that loads the file as it is now begins."""
            clients[0].close()
            clients[0].enter_context(_reading(system, seconds, lost))
            clients.rotate()

        def kill() -> None:
            if victim:
                kills.append(time.monotonic())
                (system.invalidator if victim == "invalidator" else stays).restart()

        with patch.object(state, "PREVIOUS_READER_SECONDS", 2), clients[0], clients[1]:
            renew()
            renew()
            with _writing(system, cycle(KEYS), len(KEYS) // TTL_SECONDS):  # entries of all ages
                time.sleep(TTL_SECONDS)
            with _writing(system, iter(lambda: random.choice(KEYS), None), WRITES):
                time.sleep(QUIET_SECONDS)
                for each in seconds:
                    each.clear()
                time.sleep(QUIET_SECONDS)
                begun = time.monotonic()
                for change in ("add", "finish", "remove") if size == 2 else ("remove", "finish", "add"):
                    deploy(system, change, "--after-ttl" if change == "finish" else third.address, disturb=kill)
                    renew()
                    time.sleep(QUIET_SECONDS)
                    kill()
                    time.sleep(QUIET_SECONDS)
                    renew()
    results = _compare(seconds[False], begun, suffix)
    return results + _compare_lost(seconds[True], begun, kills, suffix) if lost else results


def _keys_on(system: System, nodes: list[str]) -> frozenset[int]:
    """The keys that either file places on the first node."""
    items = [(key, system.subject("customer", key).item) for key in KEYS]
    few, all_ = Placement(nodes[:2]), Placement(nodes)
    return frozenset(key for key, item in items if nodes[0] in (few.node_for(item), all_.node_for(item)))


def _compare(seconds: Seconds, begun: float, suffix: str) -> list[Result]:
    (before, shares), (cold, colds) = _divide(seconds, begun), _divide(seconds, begun, is_cold=True)
    return [
        Result(f"moving_hits{suffix}", 100 * min(shares), "%", "hits before", 100 * before,
               (min(shares) / before, max(shares) / before), CRITERION),
        Result(f"moving_reads{suffix}", fmean(colds), "in a second", "reads of the database before", cold,
               (min(colds) / cold, max(colds) / cold), READS_CRITERION),
    ]  # fmt: skip


def _compare_lost(seconds: Seconds, begun: float, kills: list[float], suffix: str) -> list[Result]:
    """How long the keys that were lost are not as warm as before. Even a cache that works all the time must be asked
    for nine of ten first."""
    least = math.log(10) * len(KEYS) / (2 * READS)
    before, _ = _divide(seconds, begun)
    cold = [second for second, each in seconds.items() if not CRITERION.holds(_share(each) / before)]
    waits = [
        sum(killed <= each + 1 < following for each in cold) for killed, following in pairwise([*kills, math.inf])
    ]
    spread = min(waits) / least, max(waits) / least
    return [Result(f"moving_lost{suffix}", max(waits), "s", "until 90 % were asked for", least, spread)]


def _divide(seconds: Seconds, begun: float, *, is_cold: bool = False) -> tuple[float, list[float]]:
    """The mean of the seconds before ``begun``, and those after it. The first and the last one of all are parts."""
    parts: tuple[list[float], list[float]] = [], []
    for second in sorted(seconds)[1:-1]:
        found = seconds[second]
        parts[second + 1 > begun].append(found[False] if is_cold else _share(found))
    return fmean(parts[False]), parts[True]


def _share(second: Counter[bool]) -> float:
    return second[True] / second.total()


@contextmanager
def _reading(system: System, seconds: tuple[Seconds, Seconds], lost: frozenset[int]) -> Iterator[None]:
    """``seconds``: first for keys that are there, then for lost ones."""
    with closing(system.open_cache()) as cache:

        def read() -> None:
            key = random.choice(KEYS)
            outcome = cache.get("customer", key, explain=True).outcome
            seconds[key in lost].setdefault(int(time.monotonic()), Counter())[outcome in WARM] += 1

        with paced(read, READS):
            yield


@contextmanager
def _writing(system: System, keys: Iterator[int], rate: int) -> Iterator[None]:
    with system.pair.primary.connect("shop") as connection, connection.cursor() as cursor:

        def write() -> None:
            cursor.execute("UPDATE customers SET v = v + 1 WHERE id = %s", (next(keys),))

        with paced(write, rate):
            yield
