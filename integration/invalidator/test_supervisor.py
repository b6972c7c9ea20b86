"""A stand-in of systemd's socket hears the life of the real process, and is not fed while its loop hangs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.harness import running_system
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
        self.socket.settimeout(READY_SECONDS)

    def wait_for(self, is_it: Callable[[str], bool]) -> list[str]:
        """What came, up to the first that is it."""
        came: list[str] = []
        while not came or not is_it(came[-1]):
            came.append(self.socket.recv(4096).decode())
        return came


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", str(WATCHDOG_USEC))
    yield made
    made.socket.close()


@pytest.mark.parametrize("flavor", ["mariadb"])
def test_the_life_of_a_process(pair: Pair, tmp_path: Path, manager: Manager) -> None:
    trap = tmp_path / "trap"
    with running_system(pair, tmp_path) as system:
        manager.wait_for("STATUS=shop/- streaming".__eq__)
        assert system.invalidator.terminate() == 0
        manager.wait_for("STOPPING=1".__eq__)
        program = InvalidatorProcess(system.config_path)
        program._arguments = ("-c", HANGING, str(trap), "run", "--config", str(system.config_path))
        with program:
            first = manager.wait_for("WATCHDOG=1".__eq__)
            assert first[0] == "READY=1"
            manager.wait_for("WATCHDOG=1".__eq__)

            trap.touch()
            while not trap.with_suffix(".sprung").exists():
                manager.wait_for("WATCHDOG=1".__eq__)
            came: list[str] = []
            for _ in range(5):
                time.sleep(WATCHDOG_USEC / 1e6)
                program.reload(system.config)  # the process hears, and its loop hangs
                came += manager.wait_for(lambda text: text.startswith("RELOADING=1\nMONOTONIC_USEC="))
                came += manager.wait_for("READY=1".__eq__)
            assert came.count("WATCHDOG=1") <= 1, "one step may have been taken since it was fed"

            trap.unlink()
            manager.wait_for("WATCHDOG=1".__eq__)
            assert program.terminate() == 0
