"""``make soak SECONDS=3600``: whether memory, file descriptors and threads stay flat under a steady load.

An invalidator, an application of threads and one of tasks run on a MariaDB primary with a replica and two nodes of
memcached. Rows change and are added all the time; now and then a table is emptied, a node flushed, the log rotated
and the stream read by a new consumer. Every few seconds each process is looked at. Exit code 1: something grows.
``--write`` keeps the run in ``soak.json``, from which docs/testing.md has its table, and draws its curves.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, linear_regression, median
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.measure import paced
from benchmarks.plot import draw
from benchmarks.report import describe_machine
from benchmarks.soak_application import ROWS
from integration.configuration import CUSTOMER, PROFILE
from integration.harness import CUSTOMERS_TABLE, System, running_system
from integration.servers import database_pair
from integration.servers.process import find_free_port
from integration.servers.program import PythonProgram

HERE: Final = Path(__file__).resolve().parent
RESULTS: Final = HERE / "soak.json"
PLOTS: Final = HERE.parent / "docs" / "plots"
SAMPLE_SECONDS: Final = 5.0
WRITES: Final = 50
"""Commits in a second."""

EVENT_SECONDS: Final = 20.0
"""From one rare event to the next."""

TAIL_BYTES: Final = 10_000
POINTS: Final = 10
"""Of a drawn curve: medians."""

MEMORY_RISE_MAX: Final = 0.02
"""By how much the line through the second half may rise in it, as a share of the mean."""

COUNT_RISE_MAX: Final = 1.0
"""The same of files and threads: less than one more."""

QUANTITIES: Final = ("memory_mb", "files", "threads")

OBJECTS: Final = f"""{CUSTOMER}[objects.logged]
table = "customers"
fill_from_log = true
[objects.copied]
table = "customers"
local_copy_seconds = 0.2
[objects.orders_of]
table = "orders"
key = "customer_id"
order_by = "id desc"
limit = 5
[objects.note]
table = "notes"
{PROFILE}"""
CACHE: Final = {"local_copies_bytes": 1_000_000}
STREAM: Final = {"heartbeat_seconds": 1}
TABLES: Final = (
    CUSTOMERS_TABLE,
    "CREATE TABLE orders (id BIGINT PRIMARY KEY AUTO_INCREMENT, customer_id BIGINT, total INT, KEY (customer_id))",
    "CREATE TABLE notes (id BIGINT PRIMARY KEY, v INT)",
)


@dataclass(frozen=True, slots=True)
class Growth:
    """A quantity of a process: its mean in the second half, and the rise of the line through it there."""

    process: str
    quantity: str
    mean: float
    rise: float

    @property
    def is_flat(self) -> bool:
        return self.rise < (MEMORY_RISE_MAX * self.mean if self.quantity == "memory_mb" else COUNT_RISE_MAX)


class Application(PythonProgram):
    technology = "application"

    def is_ready(self) -> bool:
        return bool(self._lines())

    def counts(self) -> list[int]:
        """Values that were read, hits, and reads that were refused."""
        assert self.is_running(), self.log_tail()
        return [int(number) for number in self._lines()[-1].split()]

    def _lines(self) -> list[str]:
        with self.log_path.open("rb") as file:
            file.seek(max(0, self.log_path.stat().st_size - TAIL_BYTES))
            return re.findall(r"^(\d+ \d+ \d+)\n", file.read().decode(errors="replace"), re.MULTILINE)


def look_at(pid: int) -> dict[str, float]:
    """What a process holds, from /proc."""
    process = Path(f"/proc/{pid}")
    found = dict(re.findall(r"^(VmRSS|Threads):\s+(\d+)", (process / "status").read_text(), re.MULTILINE))
    return {
        "memory_mb": int(found["VmRSS"]) / 1024,
        "files": len(list((process / "fd").iterdir())),
        "threads": int(found["Threads"]),
    }


def read_metrics(url: str) -> dict[str, float]:
    """The samples of the invalidator that have no other label than the shard's, by name."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        name: float(value) for name, value in re.findall(r'^(\w+)\{lineage="shop/-"\} (\S+)$', text, re.MULTILINE)
    }


def judge(samples: Sequence[dict[str, Any]]) -> list[Growth]:
    """Of samples at even intervals: each quantity of each process, by the second half."""
    half = samples[len(samples) // 2 :]
    found = []
    for process in half[0]["processes"]:
        for quantity in QUANTITIES:
            values = [sample["processes"][process][quantity] for sample in half]
            slope = linear_regression(range(len(values)), values).slope
            found.append(Growth(process, quantity, fmean(values), slope * (len(values) - 1)))
    return found


# -- the load ---------------------------------------------------------------------------------------------


def fill_tables(system: System) -> None:
    system.execute(f"INSERT INTO customers SELECT seq, CONCAT('customer ', seq), 0 FROM seq_0_to_{ROWS - 1}")
    system.execute(f"INSERT INTO orders (customer_id, total) SELECT seq, 1 FROM seq_0_to_{ROWS - 1}")


@contextmanager
def writing(system: System) -> Iterator[None]:
    """Hot rows change, rows and orders are added, and the oldest orders go."""
    new = itertools.count(ROWS)
    with system.pair.primary.connect("shop") as connection, connection.cursor() as cursor:

        def write() -> None:
            key = int(ROWS * random.random() ** 4)
            cursor.execute("UPDATE customers SET v = v + 1 WHERE id = %s", (key,))
            match random.randrange(4):
                case 0:
                    cursor.execute("INSERT INTO orders (customer_id, total) VALUES (%s, 2)", (key,))
                    cursor.execute("DELETE FROM orders ORDER BY id LIMIT 1")
                case 1:
                    cursor.execute("INSERT INTO customers VALUES (%s, 'new', 0)", (next(new),))
                case 2:
                    cursor.execute("REPLACE INTO notes VALUES (%s, 1)", (random.randrange(1000),))

        with paced(write, WRITES):
            yield


def consume(url: str) -> None:
    """Read some of the update stream, and leave without a word."""
    with urllib.request.urlopen(f"{url}/v1/update-stream?keyspace=shop", timeout=30) as answer:
        for _ in range(10):
            answer.readline()


@contextmanager
def disturbing(system: System, url: str) -> Iterator[None]:
    """One rare event after the other."""
    events: tuple[Callable[[], object], ...] = (
        partial(system.execute, "TRUNCATE TABLE notes"),
        partial(consume, url),
        partial(system.nodes[0].ask, "flush_all"),
        partial(system.execute, "FLUSH BINARY LOGS"),
        partial(system.execute, "ALTER TABLE notes FORCE"),
    )
    turns = itertools.cycle(events)
    with paced(lambda: next(turns)(), 1 / EVENT_SECONDS):
        yield


# -- the run ----------------------------------------------------------------------------------------------


def soak(seconds: float, path: Path) -> list[dict[str, Any]]:
    """The samples, one for each `SAMPLE_SECONDS`, also as lines of the file. ``lag_ms`` and ``hits_percent`` are of
    the time since the previous one."""
    samples = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="soak-")))
        pair = stack.enter_context(database_pair("mariadb"))
        url = f"http://127.0.0.1:{find_free_port()}"
        extra = f'[http]\nlisten = "{url.removeprefix("http://")}"\n'
        system = stack.enter_context(
            running_system(pair, folder, tables=TABLES, objects=OBJECTS, cache=CACHE, stream=STREAM, extra=extra)
        )
        fill_tables(system)
        system.settle()
        module = "benchmarks.soak_application"
        applications = {
            kind: stack.enter_context(Application("-m", module, str(system.config_path), kind))
            for kind in ("threads", "tasks")
        }
        stack.enter_context(writing(system))
        stack.enter_context(disturbing(system, url))
        with path.open("w", buffering=1) as file:
            for sample in _sample(system, url, applications, seconds):
                samples.append(sample)
                print(json.dumps(sample), file=file)
    return samples


def _sample(
    system: System, url: str, applications: dict[str, Application], seconds: float
) -> Iterator[dict[str, Any]]:
    begun, before = time.monotonic(), _totals(url, applications)
    for number in range(1, int(seconds / SAMPLE_SECONDS) + 1):
        time.sleep(max(0.0, begun + number * SAMPLE_SECONDS - time.monotonic()))
        now = _totals(url, applications)
        lag, heartbeats, read, hits, refused = (later - earlier for later, earlier in zip(now, before, strict=True))
        before = now
        processes = {"invalidator": look_at(system.invalidator.pid)}
        yield {
            "seconds": round(time.monotonic() - begun, 1),
            "lag_ms": 1000 * lag / max(1, heartbeats),
            "hits_percent": 100 * hits / max(1, read),
            "refused": refused,
            "processes": processes | {name: look_at(each.pid) for name, each in applications.items()},
        }


def _totals(url: str, applications: dict[str, Application]) -> list[float]:
    metrics = read_metrics(url)
    counts = [each.counts() for each in applications.values()]
    lags = [metrics[f"freshness_lag_seconds_{part}"] for part in ("sum", "count")]
    return [*lags, *(sum(each) for each in zip(*counts, strict=True))]


def summarize(samples: Sequence[dict[str, Any]], growths: Sequence[Growth]) -> dict[str, Any]:
    """What is kept: curves of few points, and the verdict."""
    size = max(1, len(samples) // POINTS)
    parts = [samples[first : first + size] for first in range(0, size * (len(samples) // size), size)]
    rows: dict[str, list[tuple[float, float]]] = {}
    for part in parts:
        minute = round(part[-1]["seconds"] / 60, 1)
        for name in ("lag_ms", "hits_percent"):
            rows.setdefault(name, []).append((minute, round(median(each[name] for each in part), 2)))
        for process in part[0]["processes"]:
            found = median(each["processes"][process]["memory_mb"] for each in part)
            rows.setdefault(f"memory_{process}", []).append((minute, round(found, 1)))
    return {
        "machine": describe_machine(),
        "seconds": round(samples[-1]["seconds"]),
        "growths": [
            {"process": g.process, "quantity": g.quantity, "mean": round(g.mean, 1), "rise": round(g.rise, 2)}
            | {"is_flat": g.is_flat}
            for g in growths
        ],
        "curves": rows,
    }


def draw_curves(curves: dict[str, Any]) -> None:
    for name, unit in (("memory_invalidator", "MB"), ("memory_threads", "MB"), ("memory_tasks", "MB"),
                       ("lag_ms", "ms"), ("hits_percent", "%")):  # fmt: skip
        text = draw(f"{name} by minutes of a steady load", "minutes", unit, curves[name])
        (PLOTS / f"soak_{name}.svg").write_text(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--write", action="store_true", help=f"keep the run in {RESULTS.name} and draw its curves")
    parser.add_argument("--samples", type=Path, default=os.devnull, help="write each sample there, as a line of JSON")
    options = parser.parse_args(arguments)
    samples = soak(options.seconds, options.samples)
    growths = judge(samples)
    for growth in growths:
        print(
            f"{growth.process}: {growth.quantity} {growth.mean:.1f}, {growth.rise:+.2f} in the second half"
            + ("" if growth.is_flat else ": not flat")
        )
    if options.write:
        result = summarize(samples, growths)
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
        draw_curves(result["curves"])
    return int(not all(growth.is_flat for growth in growths))


if __name__ == "__main__":
    sys.exit(main())
