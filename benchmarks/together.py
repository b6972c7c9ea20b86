"""Pairs of rows on two nodes that one transaction changes, read with and without ``together``: the share that is
torn, and the share of reads that one round answers.

Both are counts of one run: readers of either kind beside one writer.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

from appclient import Cache, ReadOutcome
from benchmarks.measure import Criterion, Result, paced
from freshness.algorithm import together
from freshness.algorithm.read import read_through
from integration.harness import System, repeating, running_system, wait_for_hits
from integration.servers import Flavor, database_pair

READERS: Final = 3
PAIRS: Final = 200
KEYS: Final = tuple(range(1, 6 * PAIRS))
SECONDS: Final = 30
TORN: Final = Criterion(at_most=0)
ROUNDS: Final = Criterion(at_least=0.99)


def measure_together(
    _: int, *, suffix: str = "", flavor: Flavor = "mariadb", rate: int = 100, is_logged: bool = False, size: int = 1
) -> list[Result]:
    """One run, whatever the number of rounds. ``rate``: transactions per second. ``size``: pairs of one read."""
    objects = f'[objects.customer]\ntable = "customers"\nfill_from_log = {str(is_logged).lower()}\n'
    looks, counts = _Looks(), Counter[str]()
    with (
        database_pair(flavor) as pair,
        TemporaryDirectory() as folder,
        running_system(pair, Path(folder), objects=objects) as system,
        closing(system.open_cache()) as cache,
        patch.object(together, "read_through", looks.look),
        ExitStack() as stack,
    ):
        rows = ", ".join(f"({key}, 'customer {key}', 0)" for key in KEYS)
        system.execute(f"INSERT INTO customers VALUES {rows}")
        pairs = _find_pairs(system)
        wait_for_hits(cache, "customer", [key for pair in pairs for key in pair], system.describe)
        stack.enter_context(_writing(system, pairs, rate))
        for _ in range(READERS):
            own = Counter[str]()
            stack.callback(counts.update, own)
            stack.enter_context(repeating(partial(_read, cache, pairs, size, looks, own)))
        time.sleep(SECONDS)
    at_once, at_once_plain = (100 * counts[f"{kind} at once"] * size / counts[kind] for kind in ("together", "plain"))
    torn, torn_plain = (counts[f"{kind} torn"] for kind in ("together", "plain"))
    return [
        Result(f"together_rounds{suffix}", at_once, "% at once", "without together", at_once_plain,
               (at_once / at_once_plain,) * 2, ROUNDS, is_share=True),
        Result(f"together_torn{suffix}", torn, f"torn of {counts['together']:,}", "without together", torn_plain,
               (torn / torn_plain,) * 2, TORN),
    ]  # fmt: skip


class _Looks(threading.local):
    """How often a thread has looked at the nodes, in its present read."""

    count = 0

    def look(self, *arguments: Any) -> Any:
        self.count += 1
        return (yield from read_through(*arguments))


def _find_pairs(system: System) -> list[tuple[int, int]]:
    """Pairs whose rows are on two nodes."""
    nodes = [[key for key in KEYS if system.subject("customer", key).node == each.address] for each in system.nodes]
    return list(zip(*nodes, strict=False))[:PAIRS]


@contextmanager
def _writing(system: System, pairs: Sequence[tuple[int, int]], rate: int) -> Iterator[None]:
    with system.pair.primary.connect("shop") as connection, connection.cursor() as cursor:

        def write() -> None:
            cursor.execute("UPDATE customers SET v = v + 1 WHERE id IN (%s, %s)", random.choice(pairs))

        with paced(write, rate):
            yield


def _read(cache: Cache, pairs: Sequence[tuple[int, int]], size: int, looks: _Looks, counts: Counter[str]) -> None:
    """Pairs in each of the two ways."""
    for kind in ("plain", "together"):
        looks.count = 0
        chosen = random.sample(pairs, size)
        found = cache.get_many("customer", chain(*chosen), explain=True, together=kind == "together")
        counts[kind] += size
        counts[f"{kind} torn"] += sum(found[one].value["v"] != found[two].value["v"] for one, two in chosen)
        is_hit = all(each.outcome is ReadOutcome.HIT for each in found.values())
        counts[f"{kind} at once"] += is_hit and looks.count <= 1
