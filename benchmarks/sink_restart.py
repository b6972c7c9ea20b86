"""From the end of the sink's driver to open nodes, with the driver that stands in for its cluster and without.

``python -m benchmarks.sink_restart [--kills 3] [--json]``. Not part of ``make bench``: it waits for minutes. The
driver and its JVM are killed and started again at once, as a supervisor does. Everything runs on private servers,
with the settings that ``freshness.toml`` has by default.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.report import describe_machine
from freshness.algorithm.envelope import find_record, record_key
from freshness.algorithm.request import Get
from freshness.config.config import load_config
from freshness.nodes.memcached import MemcachedNode
from integration.configuration import write_config
from integration.harness import CUSTOMERS_TABLE, wait_until
from integration.servers import Memcached, database_pair
from integration.servers.process import find_free_port
from integration.servers.program import InvalidatorProcess
from integration.servers.sink import SinkProcess

KILLS: Final = 3
STEADY_BATCHES: Final = 10
START_SECONDS: Final = 300.0
LOOK_SECONDS: Final = 0.02
WITHOUT: Final = (
    "import sys; from spark.sink import __main__ as sink; "
    "sink.StandIn.__enter__ = lambda self: self; sink.StandIn.__exit__ = lambda *_: None; "
    "sys.exit(sink.main(sys.argv[1:]))"
)


class BareSink(SinkProcess):
    """The same program, whose driver does not stand in."""

    def command(self) -> list[str]:
        command = super().command()
        at = command.index("-m")
        return [*command[:at], "-c", WITHOUT, *command[at + 2 :]]


KINDS: Final[Mapping[str, type[SinkProcess]]] = {"stands in": SinkProcess, "does not": BareSink}


@dataclass(frozen=True, slots=True)
class Restart:
    """Seconds from the kill: until all nodes are open by a heartbeat that is younger than the kill, and until Spark
    has committed a micro-batch. ``closed``: seconds of each during which a node was not open."""

    open: float
    cluster: float
    closed: float


class Watch:
    """The records of the nodes."""

    def __init__(self, config_path: Path) -> None:
        config = load_config(config_path)
        [lineage] = config.lineages
        self._key = record_key(config.cache.namespace, lineage)
        self._nodes = [MemcachedNode(address) for address in config.cache.nodes]

    def is_open(self, since_us: int) -> bool:
        """Whether all nodes are open, on the strength of a heartbeat that was written since."""
        for node in self._nodes:
            record = find_record(node.perform([Get(self._key, is_bound=True)])[0], node.name)
            if record is None or not record.is_open or record.as_of_us < since_us:
                return False
        return True

    def close(self) -> None:
        for node in self._nodes:
            node.close()


class Bench:
    """A sink of this kind, and what can be seen of it from outside."""

    def __init__(self, kind: type[SinkProcess], config_path: Path, url: str, checkpoint: Path) -> None:
        self.sink = kind(config_path, "--url", url, checkpoint=checkpoint)
        self._watch = Watch(config_path)
        self._commits = checkpoint / "commits"

    def close(self) -> None:
        self.sink.stop()
        self._watch.close()

    def committed(self) -> int:
        """The number of the last micro-batch that Spark has committed; -1 before the first."""
        return max((int(path.name) for path in self._commits.glob("[0-9]*")), default=-1)

    def settle(self) -> None:
        """Return when Spark commits one micro-batch after the other, and all nodes are open."""
        wanted = self.committed() + STEADY_BATCHES

        def is_steady() -> bool:
            return self.committed() >= wanted and self._watch.is_open(0)

        wait_until(is_steady, "micro-batches follow", self.sink.log, seconds=START_SECONDS)

    def restart(self) -> Restart:
        begun, begun_us, before = time.monotonic(), time.time_ns() // 1000, self.committed()
        opened = cluster = closed = 0.0
        self.sink.kill()
        self.sink.launch()
        last = begun
        while not (opened and cluster):
            assert self.sink.is_running(), self.sink.log()
            assert last - begun < START_SECONDS, self.sink.log()
            time.sleep(LOOK_SECONDS)
            is_open, now = self._watch.is_open(0), time.monotonic()
            closed += 0.0 if is_open else now - last
            if self._watch.is_open(begun_us):
                opened = opened or now - begun
            if self.committed() > before:
                cluster = cluster or now - begun
            last = now
        return Restart(round(opened, 2), round(cluster, 2), round(closed, 2))


def measure(kind: type[SinkProcess], config_path: Path, url: str, checkpoint: Path, kills: int) -> list[Restart]:
    """Start a sink, and kill it ``kills`` times once it runs."""
    bench = Bench(kind, config_path, url, checkpoint)
    restarts = []
    try:
        bench.sink.launch()
        for _ in range(kills):
            bench.settle()
            restarts.append(bench.restart())
            print(restarts[-1], file=sys.stderr)
    finally:
        bench.close()
    return restarts


@contextmanager
def open_system(folder: Path) -> Iterator[tuple[Path, str]]:
    """(the sink's configuration, the address of a stream) with servers that nothing else uses."""
    with ExitStack() as stack:
        pair = stack.enter_context(database_pair("mariadb"))
        pair.primary.execute(CUSTOMERS_TABLE, database="shop")
        pair.wait_caught_up()
        nodes = [stack.enter_context(Memcached()).address for _ in range(2)]
        port = find_free_port()
        paths = []
        for name, extra in (("stream", f'[http]\nlisten = "127.0.0.1:{port}"\n'), ("sink", "")):
            (folder / name).mkdir()
            paths.append(
                write_config(
                    folder / name,
                    "mariadb",
                    pair.primary.url,
                    nodes,
                    replicas=[pair.replica.url],
                    cache={"namespace": name},
                    extra=extra,
                )
            )
        stack.enter_context(InvalidatorProcess(paths[0]))
        yield paths[1], f"http://127.0.0.1:{port}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.sink_restart", description="Measure restarts of the sink's driver."
    )
    parser.add_argument("--kills", type=int, default=KILLS, help=f"of each kind, by default {KILLS}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    results: dict[str, list[Restart]] = {}
    with tempfile.TemporaryDirectory() as name, open_system(Path(name)) as (config_path, url):
        for title, kind in KINDS.items():
            checkpoint = Path(name) / f"checkpoint {len(results)}"
            results[title] = measure(kind, config_path, url, checkpoint, options.kills)
    if options.json:
        told = {title: [asdict(each) for each in restarts] for title, restarts in results.items()}
        print(json.dumps({"machine": describe_machine(), "results": told}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
