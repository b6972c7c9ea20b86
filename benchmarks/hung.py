"""What reads cost while one of four cache nodes hangs, beside the same reads before.

``python -m benchmarks.hung [--json]``. Threads read keys of all nodes; a node is stopped (SIGSTOP: it takes
connections and answers nothing) and continued. The first second after the stop counts for itself: in it, reads find
out. The database's rows take the interpreter's time from the other threads, so the same keys are read past the cache
for comparison, too, while all nodes answer.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass, field
from typing import Final

from benchmarks.report import describe_machine
from benchmarks.shop import Shop, open_shop

NODES: Final = 4
THREADS: Final = 4
SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 0.0005
"""Between two reads of a thread, so that a core is left for the servers."""


@dataclass(slots=True)
class Latencies:
    """Of single reads, in milliseconds. ``own``: keys of the node that is stopped, ``others``: all other keys."""

    own: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    def quantiles(self) -> dict[str, float]:
        return {
            f"{name}_{label}_ms": round(sorted(values)[int(share * (len(values) - 1))], 3)
            for name, values in (("own", self.own), ("others", self.others))
            if values
            for label, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        }


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of the run. ``reads``: number of reads that ended in it."""

    name: str
    reads: int
    latencies: dict[str, float]


def read_for(shop: Shop, own: Set[int], seconds: float, *, is_past_cache: bool = False) -> Latencies:
    """Latencies of the reads of all threads. ``own``: the keys of the node; ``is_past_cache``: True to read
    these
    past the cache."""
    found = [Latencies() for _ in range(THREADS)]
    failures: list[BaseException] = []

    def read(seen: Latencies, seed: int) -> None:
        draw = random.Random(seed)
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                key = draw.choice(shop.keys)
                begun = time.perf_counter()
                shop.cache.get("customer", key, max_staleness_seconds=0.0 if is_past_cache and key in own else None)
                took = 1000 * (time.perf_counter() - begun)
                (seen.own if key in own else seen.others).append(took)
                time.sleep(PAUSE_SECONDS)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    threads = [threading.Thread(target=read, args=(seen, seed)) for seed, seen in enumerate(found)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return Latencies([x for each in found for x in each.own], [x for each in found for x in each.others])


def measure(seconds: float) -> list[Phase]:
    """The phases of one run: all nodes answer, one has hung for a second, it hangs on, all answer again."""
    phases = []
    with open_shop(node_count=NODES) as shop:
        node = shop.servers[0]
        answers = shop.cache.get_many("customer", shop.keys, explain=True)
        own = {key for key, answer in answers.items() if answer.node == node.address}

        def note(name: str, seconds: float, *, is_past_cache: bool = False) -> None:
            seen = read_for(shop, own, seconds, is_past_cache=is_past_cache)
            phases.append(Phase(name, len(seen.own) + len(seen.others), seen.quantiles()))

        read_for(shop, own, 1.0)
        note("all nodes answer", seconds)
        note("all nodes answer, and its keys are read past the cache", seconds, is_past_cache=True)
        node.pause()
        try:
            note("the first second of a node that hangs", 1.0)
            note("it hangs", seconds)
        finally:
            node.resume()
        read_for(shop, own, 2.0)
        note("all answer again", seconds)
    return phases


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hung", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each phase")
    options = parser.parse_args(arguments)
    phases = measure(options.seconds)
    before, past, _, hung, _ = (phase.latencies for phase in phases)
    ratios = {
        "others_p99_to_hits": round(hung["others_p99_ms"] / before["others_p99_ms"], 3),
        "others_p99_to_past_cache": round(hung["others_p99_ms"] / past["others_p99_ms"], 3),
        "own_p99_less_past_cache_ms": round(hung["own_p99_ms"] - past["own_p99_ms"], 3),
    }
    if options.json:
        answer = {"machine": describe_machine(), "phases": [asdict(phase) for phase in phases], **ratios}
        print(json.dumps(answer, indent=2))
        return 0
    for phase in phases:
        print(f"{phase.name}: {phase.reads} reads, {phase.latencies}")
    print(ratios)
    return 0


if __name__ == "__main__":
    sys.exit(main())
