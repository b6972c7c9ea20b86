"""One cache in the process models of gunicorn: forked after the import, with threads and with greenlets."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest

from integration.harness import System, running_system, wait_until
from integration.servers import Pair
from integration.servers.process import ServerProcess, find_free_port

KEYS: Final = range(40)
REQUESTS: Final = 600
AT_ONCE: Final = 120
CONNECTIONS_MAX: Final = 5
WORKERS: Final = 2
ROOT: Final = Path(__file__).resolve().parents[2]


class Gunicorn(ServerProcess):
    """gunicorn with the application of ``web.py``, imported before it forks its workers."""

    technology = "gunicorn"

    def __init__(
        self, config_path: Path, *options: str, environment: Mapping[str, str | Path] = MappingProxyType({})
    ) -> None:
        super().__init__()
        self.answers = 0
        self._environment = environment
        self.port = find_free_port()
        self._config_path = config_path
        self._options = options

    def command(self) -> list[str]:
        return [
            "/usr/bin/env",
            f"PYTHONPATH={ROOT}",
            f"FRESHNESS_TOML={self._config_path}",
            *(f"{name}={value}" for name, value in self._environment.items()),
            sys.executable,
            "-m",
            "gunicorn",
            "--preload",
            f"--workers={WORKERS}",
            f"--bind=127.0.0.1:{self.port}",
            *self._options,
            "integration.appclient.web:application",
        ]

    def is_ready(self) -> bool:
        try:
            return bool(self.ask(0))
        except OSError:
            return False

    def ask(self, key: int) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{key}", timeout=30) as response:
            answer: dict[str, Any] = json.load(response)
        self.answers += 1
        return answer

    def ask_all(self, processes: Iterable[int]) -> set[int]:
        """The processes of all workers: those which have answered, and the others once they do."""
        found = set(processes)

        def have_answered() -> bool:
            found.update(self.ask(0)["process"] for _ in range(WORKERS - len(found)))
            return len(found) == WORKERS

        wait_until(have_answered, "each worker has answered", self.log)
        return found


@pytest.fixture(scope="module")
def counted(mysql_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[System, list[int]]]:
    """A system, and the connections to each of its nodes before any application."""
    mysql_pair.primary.execute("DROP DATABASE IF EXISTS shop")
    mysql_pair.primary.execute("CREATE DATABASE shop")
    folder = tmp_path_factory.mktemp("web")
    with running_system(mysql_pair, folder, cache={"connections_max": CONNECTIONS_MAX}) as made:
        made.execute("INSERT INTO customers VALUES " + ", ".join(f"({key}, 'n', 0)" for key in KEYS))
        made.settle()
        yield made, [count_connections(made, node) for node in range(2)]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--worker-class=gthread", "--threads=30"), id="threads"),
        pytest.param(("--worker-class=gevent", "--worker-connections=200"), id="greenlets"),
        pytest.param((), id="one at a time"),
    ],
)
def test_workers_that_are_forked_read_right_rows_on_bounded_connections(
    counted: tuple[System, list[int]], options: tuple[str, ...]
) -> None:
    system, before = counted
    wait_until(
        lambda: all(count_connections(system, node) <= before[node] for node in range(2)),
        "the workers of a previous server have ended",
        system.describe,
    )
    most = [0]
    with Gunicorn(system.config_path, *options) as server, ThreadPoolExecutor(AT_ONCE) as pool:
        answers = []
        for number, answer in enumerate(pool.map(server.ask, [n % len(KEYS) for n in range(REQUESTS)])):
            assert (answer["fresh"], answer["id"]) == (number % len(KEYS),) * 2
            answers.append(answer)
            if number % 50 == 0:
                opened = max(count_connections(system, node) - before[node] for node in range(2))
                most[0] = max(most[0], opened)
        processes = server.ask_all(answer["process"] for answer in answers)
    assert processes.isdisjoint({os.getpid()})
    # Each worker, and one for the count itself; the process that forked has read nothing
    assert 0 < most[0] <= WORKERS * CONNECTIONS_MAX + 1


def count_connections(system: System, place: int) -> int:
    return int(system.nodes[place].stats()["curr_connections"])
