"""The cost of a prober, beside the hits that are served at the same time.

``python -m benchmarks.probe [--json]``. One thread reads hits as fast as it can, another changes a row after
every few of them, and a prober with its default share samples both. All its processor time, above all the
reading of the log, is
held against that of the hits of the same seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from benchmarks.report import describe_machine
from benchmarks.shop import Shop, open_shop
from integration.servers.process import find_free_port
from integration.servers.program import PythonProgram

ROUNDS: Final = 5
SECONDS: Final = 15.0
"""Of a round. Five make more than a minute, so that a sweep of the node is among them."""
HITS_PER_CHANGE: Final = 200


class ProberProcess(PythonProgram):
    """``invalidator probe``, ready when its first sweep is over."""

    technology = "prober"

    def __init__(self, config_path: Path) -> None:
        self._port = find_free_port()
        super().__init__(
            *("-m", "invalidator.cli", "probe", "--config", str(config_path)),
            *("--metrics-listen", f"127.0.0.1:{self._port}"),
        )

    def is_ready(self) -> bool:
        return self.counted("freshness_probe_sweeps_total") > 0

    def counted(self, name: str) -> float:
        """The sum of a metric's samples; 0 while nothing is served."""
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return 0.0
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def processor_seconds(pid: int) -> float:
    """Of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Cost:
    """Of one round: hits, their time one after the other, their processor time in client and node, and that of the
    prober."""

    hits: int
    seconds: float
    hit_seconds: float
    prober_seconds: float


class Changes:
    """A thread that changes rows of keys that nobody reads, one for each `HITS_PER_CHANGE` hits."""

    def __init__(self, shop: Shop, hits_per_change: int) -> None:
        self.hits_per_change = hits_per_change
        self.made = 0
        self._shop = shop
        self._asked = threading.Semaphore(0)
        self._is_over = False

    def note_hits(self, count: int) -> None:
        self._asked.release(count // self.hits_per_change)

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._change, name="changes")
        thread.start()
        try:
            yield
        finally:
            self._is_over = True
            self._asked.release()
            thread.join()

    def _change(self) -> None:
        draw, shop = random.Random(1), self._shop
        with shop.pair.primary.connect("shop") as connection, connection.cursor() as cursor:
            while self._asked.acquire() and not self._is_over:
                cursor.execute(shop.visit(draw.choice(shop.keys[len(shop.keys) // 2 :])))
                self.made += 1


def read_hits(shop: Shop, prober: ProberProcess, changes: Changes, seconds: float) -> Cost:
    """Read the other keys for so long."""
    draw = random.Random(2)
    keys = shop.keys[: len(shop.keys) // 2]
    pids = prober.pid, shop.servers[0].pid
    before = [processor_seconds(pid) for pid in pids]
    until, began = time.monotonic() + seconds, time.thread_time()
    hits = 0
    while time.monotonic() < until:
        for _ in range(changes.hits_per_change):
            shop.cache.get("customer", draw.choice(keys))
        hits += changes.hits_per_change
        changes.note_hits(changes.hits_per_change)
    of_prober, of_node = (processor_seconds(pid) - had for pid, had in zip(pids, before, strict=True))
    return Cost(hits, seconds, time.thread_time() - began + of_node, of_prober)


def measure(rounds: int, seconds: float, hits_per_change: int) -> dict[str, float]:
    with open_shop(node_count=1) as shop, ProberProcess(shop.config_path) as prober:
        changes = Changes(shop, hits_per_change)
        with changes.running():
            costs = [read_hits(shop, prober, changes, seconds) for _ in range(rounds)]
        shares = [each.prober_seconds / each.hit_seconds for each in costs]
        of_time = [each.prober_seconds / each.seconds for each in costs]
        hits = sum(each.hits for each in costs)
        return {
            "hits": hits,
            "changes": changes.made,
            "changes_sampled": prober.counted("freshness_probe_changes_total"),
            "comparisons": prober.counted("freshness_probe_comparisons_total"),
            "sweeps": prober.counted("freshness_probe_sweeps_total"),
            "losses": prober.counted("freshness_probe_losses_total"),
            "hit_us": round(1e6 * sum(each.seconds for each in costs) / hits, 1),
            "hit_processor_us": round(1e6 * sum(each.hit_seconds for each in costs) / hits, 1),
            "prober_processor_us_per_hit": round(1e6 * sum(each.prober_seconds for each in costs) / hits, 2),
            "prober_processor_us_per_change": round(
                1e6 * sum(each.prober_seconds for each in costs) / changes.made, 1
            ),
            "prober_to_time_of_hits": round(statistics.median(of_time), 4),
            "prober_to_time_of_hits_max": round(max(of_time), 4),
            "prober_to_processor_of_hits": round(statistics.median(shares), 4),
            "prober_to_processor_of_hits_max": round(max(shares), 4),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.probe", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each round")
    parser.add_argument("--hits-per-change", type=int, default=HITS_PER_CHANGE)
    options = parser.parse_args(arguments)
    found = measure(options.rounds, options.seconds, options.hits_per_change)
    if options.json:
        print(json.dumps({"machine": describe_machine(), **found}, indent=2))
    else:
        for name, value in found.items():
            print(f"{name}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
