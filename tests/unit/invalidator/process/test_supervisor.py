"""What the process says to a supervisor, and when it feeds the watchdog."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from invalidator.process.supervisor import Supervisor


class Manager:
    """The other end of the socket. ``now``: the time of the process."""

    def __init__(self, name: str) -> None:
        self.now = 0.0
        self.name = name
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.bind("\0" + name[1:] if name.startswith("@") else name)

    def watch(self, **environ: str) -> Supervisor:
        return Supervisor({"NOTIFY_SOCKET": self.name, **environ}, lambda: self.now)

    def take(self) -> list[str]:
        """What has come since the last call; without a wait, as a local datagram is there once it is sent."""
        came = []
        while True:
            try:
                came.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return came


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify") if request.param == "path" else f"@freshness{tmp_path}")
    yield made
    made.socket.close()


def test_the_life_of_a_process(manager: Manager) -> None:
    supervisor = manager.watch()
    supervisor.look("shop/- connecting", {})
    supervisor.look("shop/- streaming", {"shop/-": 3})
    supervisor.look("shop/- streaming", {"shop/-": 4})
    assert manager.take() == ["READY=1", "STATUS=shop/- connecting", "STATUS=shop/- streaming"]
    before = time.monotonic_ns() // 1000
    supervisor.reload()
    supervisor.look("shop/- streaming", {"shop/-": 5})
    reloading, ready = manager.take()
    name, _, at = reloading.partition("\nMONOTONIC_USEC=")
    assert (name, ready) == ("RELOADING=1", "READY=1")
    assert before <= int(at) <= time.monotonic_ns() // 1000
    supervisor.stop()
    assert manager.take() == ["STOPPING=1"]


@pytest.mark.parametrize("manager", ["path"], indirect=True)
def test_the_watchdog_is_fed_while_every_loop_takes_steps(manager: Manager) -> None:
    supervisor = manager.watch(WATCHDOG_USEC="10000000", WATCHDOG_PID=str(os.getpid()))

    def fed_at(now: float, **steps: int) -> bool:
        manager.now = now
        supervisor.look("", steps)
        return "WATCHDOG=1" in manager.take()

    assert not fed_at(4.9, first=1, second=1)
    assert fed_at(5, first=2, second=1)
    assert not fed_at(9.9, first=3, second=2)
    assert not fed_at(10, first=9, second=1), "the second has stood still since it was fed"
    assert not fed_at(60, first=90, second=1)
    assert fed_at(61, first=90, second=2)
    assert fed_at(66, first=91), "a loop that has ended is not asked"
    assert fed_at(71), "nor is one that has not begun"


@pytest.mark.parametrize("manager", ["path"], indirect=True)
def test_the_watchdog_is_fed_while_a_configuration_is_loaded(manager: Manager) -> None:
    """The schema of several keyspaces may take longer than it waits."""
    supervisor = manager.watch(WATCHDOG_USEC="10000000")
    supervisor.work()
    assert manager.take() == ["WATCHDOG=1"]
    manager.watch().work()
    assert manager.take() == [], "there is none"


@pytest.mark.parametrize("manager", ["path"], indirect=True)
@pytest.mark.parametrize("environ", [{}, {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}])
def test_the_watchdog_of_nobody_is_not_fed(manager: Manager, environ: dict[str, str]) -> None:
    supervisor = manager.watch(**environ)
    manager.now = 100
    supervisor.look("", {"shop/-": 1})
    assert manager.take() == ["READY=1"]


@pytest.mark.parametrize("manager", ["path"], indirect=True)
@pytest.mark.parametrize("damage", [lambda name: Path(name).unlink(), lambda name: None])
def test_a_supervisor_that_does_not_take_it_is_logged_and_does_not_hold_up(
    manager: Manager, damage: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Its socket is gone, or full."""
    damage(manager.name)
    supervisor = manager.watch()
    while not caplog.messages:
        supervisor.stop()
    assert "STOPPING=1 did not reach the supervisor" in caplog.messages[0]


def test_without_a_supervisor_nothing_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor({})
    supervisor.look("shop/- streaming", {"shop/-": 3})
    supervisor.reload()
    supervisor.stop()
    assert caplog.messages == []
