"""Whether the cache stays warm while a node comes and goes: hits of each second, beside writes, by clients of the
previous file and of the present one.

Each second 500 keys are read by either client and 20 customers change. A read that is neither a hit nor moved from a
previous node is one of the database.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

from appclient import ReadOutcome
from benchmarks.measure import Criterion, Result, paced
from freshness.algorithm import state
from integration.harness import System, deploy, running_system, wait_for_hits
from integration.servers import Flavor, Memcached, database_pair

KEYS: Final = tuple(range(1, 1001))
READS: Final = 500
"""Of a client in a second."""

WRITES: Final = 20
QUIET_SECONDS: Final = 10
CRITERION: Final = Criterion(at_least=0.9)
READS_CRITERION: Final = Criterion(at_most=1.2)
WARM: Final = frozenset((ReadOutcome.HIT, ReadOutcome.MOVED))

Seconds = dict[int, Counter[bool]]
"""By second, the number of reads that were warm, and of those that were not."""


def measure_moving(
    _: int, *, suffix: str = "", flavor: Flavor = "mariadb", node: type[Any] = Memcached
) -> list[Result]:
    """One run, whatever the number of rounds: a node is added to two, and removed."""
    backend = {"backend": node.technology}
    with (
        database_pair(flavor) as pair,
        TemporaryDirectory() as folder,
        running_system(pair, Path(folder), nodes=[node(), node()], cache=backend) as system,
        node() as third,
    ):
        rows = ", ".join(f"({key}, 'customer {key}', 1)" for key in KEYS)
        system.execute(f"INSERT INTO customers VALUES {rows}")
        before: Seconds = {}
        seconds: Seconds = {}
        with closing(system.open_cache()) as cache:
            wait_for_hits(cache, "customer", KEYS, system.describe)
        with _writing(system), patch.object(state, "PREVIOUS_READER_SECONDS", 2), ExitStack() as stack:
            with _reading(system, before), _reading(system, before):
                time.sleep(QUIET_SECONDS)
            previous = stack.enter_context(ExitStack())
            previous.enter_context(_reading(system, seconds))
            for change in (("add", third.address), ("finish",), ("remove", third.address)):
                deploy(system, *change)
                present = stack.enter_context(ExitStack())
                present.enter_context(_reading(system, seconds))
                time.sleep(QUIET_SECONDS)
                previous.close()
                previous = present
    usual, shares = fmean(_per_second(before, _share)), _per_second(seconds, _share)
    cold, colds = fmean(_per_second(before, _cold)), _per_second(seconds, _cold)
    return [
        Result(f"moving_hits{suffix}", 100 * min(shares), "%", "hits before", 100 * usual,
               (min(shares) / usual, max(shares) / usual), CRITERION),
        Result(f"moving_reads{suffix}", fmean(colds), "in a second", "reads of the database before", cold,
               (min(colds) / cold, max(colds) / cold), READS_CRITERION),
    ]  # fmt: skip


def _per_second(seconds: Seconds, figure: Callable[[Counter[bool]], float]) -> list[float]:
    """Of whole seconds: the first and the last one are parts."""
    return [figure(seconds[each]) for each in sorted(seconds)[1:-1]]


def _share(second: Counter[bool]) -> float:
    return second[True] / second.total()


def _cold(second: Counter[bool]) -> float:
    return second[False]


@contextmanager
def _reading(system: System, seconds: Seconds) -> Iterator[None]:
    """A client that has loaded the file as it is now."""
    with closing(system.open_cache()) as cache:

        def read() -> None:
            outcome = cache.get("customer", random.choice(KEYS), explain=True).outcome
            seconds.setdefault(int(time.monotonic()), Counter())[outcome in WARM] += 1

        with paced(read, READS):
            yield


@contextmanager
def _writing(system: System) -> Iterator[None]:
    with system.pair.primary.connect("shop") as connection, connection.cursor() as cursor:

        def write() -> None:
            cursor.execute("UPDATE customers SET v = v + 1 WHERE id = %s", (random.choice(KEYS),))

        with paced(write, WRITES):
            yield
