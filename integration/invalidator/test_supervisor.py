"""A stand-in of systemd's socket hears the life of the real process, and is not fed while its loop hangs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from integration.harness import running_system, wait_until
from integration.servers import Pair
from integration.servers.process import READY_SECONDS
from integration.servers.program import InvalidatorProcess

WATCHDOG_USEC = 400_000

HANGING = """
import sys, time
from pathlib import Path
from invalidator import cli
from invalidator.loop.shard import ShardInvalidator
renew = ShardInvalidator.renew
trap = Path(sys.argv.pop(1))

def hang(self):
    while trap.exists():
        trap.with_suffix(".sprung").touch()
        time.sleep(0.05)
    return renew(self)

ShardInvalidator.renew = hang
cli.main()
"""
"""The program, whose loop hangs while a file is there."""


class Manager:
    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self._came: SimpleQueue[str] = SimpleQueue()
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        """At once: the kernel keeps ten, and refuses more."""
        while received := self.socket.recv(4096):
            self._came.put(received.decode())

    def forget(self) -> None:
        while not self._came.empty():
            self._came.get()

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RD)
        self._thread.join()
        self.socket.close()

    def wait_for(self, is_it: Callable[[str], bool]) -> list[str]:
        """What came, up to the first that is it."""
        came: list[str] = []
        while not came or not is_it(came[-1]):
            came.append(self._came.get(timeout=READY_SECONDS))
        return came


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", str(WATCHDOG_USEC))
    yield made
    made.close()


@pytest.mark.parametrize("flavor", ["mariadb"])
def test_the_life_of_a_process(pair: Pair, tmp_path: Path, manager: Manager) -> None:
    trap = tmp_path / "trap"
    with running_system(pair, tmp_path) as system:
        manager.wait_for("STATUS=shop/- streaming".__eq__)
        assert system.invalidator.terminate() == 0
        manager.wait_for("STOPPING=1".__eq__)
        program = InvalidatorProcess(system.config_path)
        program._arguments = ("-c", HANGING, str(trap), "run", "--config", str(system.config_path))
        manager.forget()
        with program:
            manager.wait_for("READY=1".__eq__)
            manager.wait_for("WATCHDOG=1".__eq__)

            trap.touch()
            wait_until(trap.with_suffix(".sprung").exists, "its loop hangs")
            manager.forget()
            came: list[str] = []
            for _ in range(5):
                time.sleep(WATCHDOG_USEC / 1e6)
                program.reload(system.config)  # the process hears, and its loop hangs
                came += manager.wait_for(lambda text: text.startswith("RELOADING=1\nMONOTONIC_USEC="))
                manager.wait_for("READY=1".__eq__)  # it is fed while the configuration is loaded
            assert came.count("WATCHDOG=1") <= 1, "one step may have been taken since it was fed"

            trap.unlink()
            manager.wait_for("WATCHDOG=1".__eq__)
            assert program.terminate() == 0
