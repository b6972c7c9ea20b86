"""What the prober costs, beside the hits that are served meanwhile.

``python -m benchmarks.probe [--json]``. One thread reads hits as fast as it can, another changes rows, and a prober
with its default share samples both. All its processor time, the decoding of the stream included, is held against that
of the hits of the same seconds. In every other round it is stopped (SIGSTOP), so that the time of a hit is measured
without it.
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
SECONDS: Final = 6.0
CHANGES_PER_SECOND: Final = 200
SWEEP_SECONDS: Final = 5
"""Twelve times as often as by default: it leans against the prober."""


class ProberProcess(PythonProgram):
    """``invalidator probe``, ready when its first sweep is over."""

    technology = "prober"

    def __init__(self, config_path: Path) -> None:
        self._port = find_free_port()
        super().__init__(
            *("-m", "invalidator.cli", "probe", "--config", str(config_path)),
            *("--sweep-seconds", str(SWEEP_SECONDS), "--metrics-listen", f"127.0.0.1:{self._port}"),
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

    def processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Cost:
    """Of all rounds: hits, their processor time, and that of the prober. ``hit_us``: of a hit, by the clock."""

    hits: int
    hit_processor_seconds: float
    prober_processor_seconds: float
    hit_us: float


@contextmanager
def changing(shop: Shop) -> Iterator[None]:
    """Rows change meanwhile."""
    is_over = threading.Event()

    def change() -> None:
        draw = random.Random(1)
        with shop.pair.primary.connect("shop") as connection, connection.cursor() as cursor:
            while not is_over.wait(1 / CHANGES_PER_SECOND):
                # The upper half of the keys: those that are read stay hits
                cursor.execute(shop.visit(draw.choice(shop.keys[len(shop.keys) // 2 :])))

    thread = threading.Thread(target=change, name="changes")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def read_hits(shop: Shop, prober: ProberProcess, seconds: float) -> Cost:
    """Read for so long. Raises where a read is no hit."""
    draw = random.Random(2)
    keys = shop.keys[: len(shop.keys) // 2]
    before, began, began_cpu = prober.processor_seconds(), time.monotonic(), time.thread_time()
    hits = 0
    while time.monotonic() - began < seconds:
        for _ in range(100):
            shop.cache.get("customer", draw.choice(keys))
        hits += 100
    took, cpu = time.monotonic() - began, time.thread_time() - began_cpu
    return Cost(hits, cpu, prober.processor_seconds() - before, 1e6 * took / hits)


def measure(rounds: int, seconds: float) -> dict[str, float]:
    with open_shop(node_count=1) as shop, ProberProcess(shop.config_path) as prober, changing(shop):
        with_it: list[Cost] = []
        without: list[Cost] = []
        for _ in range(rounds):
            with_it.append(read_hits(shop, prober, seconds))
            prober.pause()
            try:
                without.append(read_hits(shop, prober, seconds))
            finally:
                prober.resume()
        shares = [each.prober_processor_seconds / each.hit_processor_seconds for each in with_it]
        ratios = [on.hit_us / off.hit_us for on, off in zip(with_it, without, strict=True)]
        return {
            "hits": sum(each.hits for each in with_it),
            "comparisons": prober.counted("freshness_probe_comparisons_total"),
            "changes_sampled": prober.counted("freshness_probe_changes_total"),
            "losses": prober.counted("freshness_probe_losses_total"),
            "hit_us": round(statistics.median(each.hit_us for each in with_it), 1),
            "prober_to_hits_processor": round(statistics.median(shares), 4),
            "prober_to_hits_processor_max": round(max(shares), 4),
            "hit_time_with_to_without": round(statistics.median(ratios), 3),
            "hit_time_with_to_without_min": round(min(ratios), 3),
            "hit_time_with_to_without_max": round(max(ratios), 3),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.probe", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each round")
    options = parser.parse_args(arguments)
    found = measure(options.rounds, options.seconds)
    if options.json:
        print(json.dumps({"machine": describe_machine(), **found}, indent=2))
    else:
        for name, value in found.items():
            print(f"{name}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
