"""One private server as a child process: start, wait until it answers, pause, kill, revive.

Called by the concrete servers beside this file. Never touches a process that it did not start, never uses a
port that is taken, and leaves nothing behind: data live in one temporary directory per process, in memory
(/dev/shm) if there is room, and a watchdog program ends the servers when this process is killed.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from freshness.errors import FreshnessError
from integration.provision import find_program
from integration.servers import watchdog

READY_SECONDS = 180.0
ABORT_SECONDS = 10.0
"""A server that does not answer by then is reported with its log.
Far above the usual 0.1-2 s, for busy machines."""
POLL_SECONDS = 0.02
PORT_ATTEMPTS_MAX = 5
LOG_TAIL_LINES = 25
MEMORY_DIRECTORY = Path("/dev/shm")
MEMORY_FREE_BYTES_MIN = 2 << 30

_lock = threading.RLock()
_claimed_ports: set[int] = set()

ready_servers: Final[set[tuple[str, str]]] = set()
"""Product and version of each server of this process that has become ready, for who counts tests by server."""


class ServerFailed(FreshnessError):
    """A private server did not start, or does not do what was asked of it."""

    exit_code = 3


# -- what all servers of this process share ------------------------------------------------------------


@functools.cache
def _watchdog() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", watchdog.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def _tell_watchdog(line: str) -> None:
    with _lock:
        pipe = _watchdog().stdin
        assert pipe is not None
        pipe.write(os.fsencode(line) + b"\n")
        pipe.flush()


@functools.cache
def _make_run_directory() -> Path:
    in_memory = (
        MEMORY_DIRECTORY.is_dir()
        and os.access(MEMORY_DIRECTORY, os.W_OK)
        and shutil.disk_usage(MEMORY_DIRECTORY).free >= MEMORY_FREE_BYTES_MIN
    )
    directory = Path(tempfile.mkdtemp(prefix="freshness-", dir=MEMORY_DIRECTORY if in_memory else None))
    _tell_watchdog(f"directory {directory}")
    # Registered before any server's own exit handler, so it runs after them.
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def run_directory() -> Path:
    """The temporary directory of this process, removed at its end. The path is short: sockets live in it."""
    with _lock:
        return _make_run_directory()


def get_program(name: str, step: str = "databases") -> str:
    """The path of an installed program. Raises `ServerFailed` with the ``step`` of provision.py that installs it."""
    found = find_program(name)
    if found is None:
        raise ServerFailed(f"{name} is not installed", hint=f"run: python3 integration/provision.py {step}")
    return found


@functools.cache
def _open_port_claims() -> int:
    """A file with one lockable byte for each port, shared by all test processes of this user."""
    path = Path(tempfile.gettempdir()) / f"freshness-ports-{os.getuid()}.lock"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _claim_port(port: int) -> bool:
    """Claim a port until this process ends; false if this process or another one has claimed it before.

    A lock of a record does not hold off its own process, so its own claims are remembered.
    """
    with _lock:
        if port in _claimed_ports:
            return False
        try:
            fcntl.lockf(_open_port_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except BlockingIOError:
            return False
        _claimed_ports.add(port)
        return True


SPARK_CONNECT: Final = 15_002
"""The port that a pipeline of Spark takes."""


def find_free_port() -> int:
    """A loopback port that is free now, and that no other call gives to anybody before this process ends.

    From below the range that the kernel hands out to connecting clients: else a client could take the port of
    a killed server before it is started again on the same one.
    """
    try:
        first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except FileNotFoundError:
        first_ephemeral = 32768
    lowest = 12000 if first_ephemeral > 14000 else 1024
    highest = first_ephemeral if first_ephemeral > lowest + 1000 else 65536
    for _ in range(200):
        port = random.SystemRandom().randrange(lowest, highest)
        if port == SPARK_CONNECT or not _claim_port(port):
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerFailed(
        f"no free port between {lowest} and {highest} on 127.0.0.1", hint="stop servers that are not needed"
    )


# -- one server ----------------------------------------------------------------------------------------


class ServerProcess(ABC):
    """A server from `start` to `stop`; also a context manager. Subclasses say how to run and to ask it."""

    technology = "server"
    product = ""
    """The name of what is tested on it, for people."""
    version = ""
    """The version that the server reported when ready, without a distribution's addition. Empty if not requested."""

    def __init__(self, directory: Path | None = None) -> None:
        self._owns_directory = directory is None
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix=f"{self.technology}-", dir=run_directory()))
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._is_prepared = False
        self._was_ready = False

    # what a concrete server says about itself

    @abstractmethod
    def command(self) -> list[str]:
        """The command line, on ``self.port`` of 127.0.0.1 only."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether *this* process answers on its port: not only that somebody does. May raise OSError."""

    def prepare(self) -> None:
        """Make the data, before the first start only."""
        return

    # life

    @property
    def log_path(self) -> Path:
        return self.directory / "log.txt"

    @property
    def pid(self) -> int:
        """The process id; raises `ServerFailed` if the server was not started or is stopped."""
        if self._process is None:
            raise ServerFailed(f"{self.technology} is not running", hint="call start() first")
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start, or start again on the same port and data after `kill`, and return when it answers."""
        self.launch()
        self.wait_ready()
        return self

    def launch(self) -> None:
        """The first half of `start`, for starting several servers side by side."""
        assert not self.is_running(), f"{self.technology} runs already"
        if not self._is_prepared:
            self.prepare()
            self._is_prepared = True
        if self.port == 0:
            self.port = find_free_port()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )
        start_ticks = watchdog.find_start_ticks(self._process.pid)
        if start_ticks is not None:
            _tell_watchdog(f"pid {self._process.pid} {start_ticks}")
        atexit.register(self._end)

    def wait_ready(self) -> None:
        """The second half of `start`. Raises `ServerFailed`, with the end of the log, if it never answers."""
        attempts = 1
        deadline = time.monotonic() + READY_SECONDS
        while True:
            if not self.is_running():
                # Somebody took the port between the look and the bind. A known port is not given up.
                if not self._was_ready and attempts < PORT_ATTEMPTS_MAX and "in use" in self.log_tail().lower():
                    attempts += 1
                    self._end()
                    self.log_path.write_bytes(b"")
                    self.port = 0
                    self.launch()
                    continue
                raise self._failure("ended before it was ready")
            try:
                if self.is_ready():
                    break
            except OSError:
                pass  # not listening yet: the deadline decides
            if time.monotonic() > deadline:
                self._end()
                raise self._failure(f"did not answer within {READY_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
        self._was_ready = True
        if self.version:
            ready_servers.add((self.product, self.version))

    def _failure(self, what: str) -> ServerFailed:
        return ServerFailed(
            f"{self.technology} on 127.0.0.1:{self.port} {what}; the end of {self.log_path}:\n{self.log_tail()}",
            hint=f"command: {' '.join(self.command())}",
        )

    def kill(self) -> None:
        """SIGKILL to it and its children, as in a crash; data stay and `start` revives it. No error if it is dead."""
        self._end()

    def restart(self) -> None:
        """`kill`, then `start` on the same port and data directory."""
        self.kill()
        self.start()

    def terminate(self) -> int:
        """SIGTERM; the exit code of the clean end. Data stay. It must run, and must not be paused."""
        process = self._process
        assert process is not None, f"{self.technology} was not started"
        self._signal(signal.SIGTERM)
        try:
            code = process.wait(READY_SECONDS)
        except subprocess.TimeoutExpired as error:
            self._signal(signal.SIGABRT)  # a program of Python logs the stacks of its threads
            with suppress(subprocess.TimeoutExpired):
                process.wait(ABORT_SECONDS)
            raise self._failure(f"did not end within {READY_SECONDS:.0f} s of SIGTERM") from error
        self._end()
        return code

    def pause(self) -> None:
        """SIGSTOP, until all threads have stopped: connections stay open and nothing answers, as on a hung host."""
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_stopped():
            if time.monotonic() > deadline:
                raise self._failure(f"did not stop within {READY_SECONDS:.0f} s of SIGSTOP")
            time.sleep(POLL_SECONDS)

    def _is_stopped(self) -> bool:
        try:
            states = [(thread / "stat").read_text() for thread in Path(f"/proc/{self.pid}/task").iterdir()]
        except (FileNotFoundError, ProcessLookupError):
            return False  # a thread has just ended
        return all(state.rpartition(")")[2].split()[0] == "T" for state in states)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if not self.is_running():
            raise self._failure(f"cannot take {number.name}: it has ended")
        os.kill(self.pid, number)

    def stop(self) -> None:
        """End it for good: SIGKILL (a clean stop took up to 11 s), and remove its own data."""
        self._end()
        if self._owns_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):  # all of the group have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _tell_watchdog(f"forget {process.pid}")
        atexit.unregister(self._end)

    def log(self) -> str:
        """All that the server has printed, in all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        """The last lines of it."""
        return "\n".join(self.log().splitlines()[-LOG_TAIL_LINES:]) or "(no log)"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
