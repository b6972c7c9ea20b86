"""How a read waits: for a socket, for a while, for another read to end.

`BLOCKING` is for threads, and for greenlets whose library patches ``socket`` and ``threading``. The application
library has another one for tasks of an event loop. Used by ``freshness`` and ``appclient``.
"""

from __future__ import annotations

import _thread
import logging
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from freshness.errors import FreshnessError

Result = TypeVar("Result")

log = logging.getLogger(__name__)

ENDED_SEEN_SECONDS: Final = 0.001

RESOLVE_SECONDS: Final = 30.0
"""How often a name is looked up again that has a connection which is kept."""


class Gate(Protocol):
    """A queue of reads that wait for something that others give back. ``waiting``: number of waiting reads."""

    waiting: int

    def wait_for(self, is_ready: Callable[[], bool], seconds: float) -> bool:
        """Return when ``is_ready`` says so, or False after that time."""

    def wake(self) -> None:
        """Let one of those that wait look again."""


class ThreadGate:
    def __init__(self) -> None:
        self.waiting = 0
        self._condition = threading.Condition(threading.Lock())

    def wait_for(self, is_ready: Callable[[], bool], seconds: float) -> bool:
        with self._condition:
            self.waiting += 1
            try:
                return self._condition.wait_for(is_ready, seconds)
            finally:
                self.waiting -= 1

    def wake(self) -> None:
        with self._condition:
            self._condition.notify()


class NameWatch:
    """The addresses that names have, for connections that are kept. Safe for threads. A name is looked up again in
    the background, so that nobody waits for a resolver that hangs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: dict[tuple[str, int], frozenset[tuple[Any, ...]]] = {}
        self._asked_at: dict[tuple[str, int], float] = {}
        self._counted: set[tuple[str, int]] = set()

    def note(self, host: str, port: int, found: Sequence[tuple[Any, ...]]) -> None:
        """Take an answer of ``socket.getaddrinfo``."""
        self._asked_at[host, port] = self._clock()
        self._found[host, port] = frozenset(address[:2] for *_, address in found)

    def has_left(self, host: str, port: int, address: tuple[Any, ...]) -> bool:
        """Whether a name that has led to an address leads elsewhere, by an answer of `RESOLVE_SECONDS` ago or
        later. In doubt it does not."""
        now = self._clock()
        if now - self._asked_at.get((host, port), now) >= RESOLVE_SECONDS:
            self._asked_at[host, port] = now
            try:
                _thread.start_new_thread(self._ask, (host, port))
            except RuntimeError as error:  # no thread is left, or the process ends
                log.info("the name %s is not looked up now: %s", host, error)
        return address not in self._found.get((host, port), (address,))

    def count_rivals(self, host: str, port: int, address: tuple[Any, ...]) -> int:
        """How many addresses of the same family a name has: as IPv4 and IPv6 one server may have two. 0 if that was
        more than one before, so that it is logged once."""
        if (host, port) in self._counted:
            return 0
        is_ipv6 = ":" in address[0]
        count = sum((":" in each[0]) == is_ipv6 for each in self._found.get((host, port), ()))
        if count > 1:
            self._counted.add((host, port))
        return count

    def _ask(self, host: str, port: int) -> None:
        try:
            self.note(host, port, _look_up(host, port))
        except OSError as error:
            log.info("the name %s cannot be looked up, and its connections are kept: %s", host, error)


def _look_up(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    """As ``socket.getaddrinfo`` for TCP. Raises OSError and UnicodeError."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)


class Network:
    """Blocks the calling thread."""

    names = NameWatch()

    tls_socket: type[ssl.SSLSocket] = ssl.SSLSocket
    """For ``SSLContext.sslsocket_class``, so that sockets of `make_socket` wait in the same way under TLS."""

    def offload(self, function: Callable[[], Result]) -> Result:
        """The result of a function that waits for something else than a socket."""
        return function()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def open_gate(self) -> Gate:
        """A new gate for reads that wait in the same way."""
        return ThreadGate()

    def make_socket(self, family: int) -> socket.socket:
        """A socket for a stream, without a time-out."""
        return socket.socket(family, socket.SOCK_STREAM)

    def resolve(self, host: str, port: int) -> Sequence[tuple[Any, ...]]:
        """As ``socket.getaddrinfo`` for TCP. Raises OSError and UnicodeError."""
        return _look_up(host, port)

    def connect(
        self,
        host: str,
        port: int,
        connect_timeout_seconds: float | None,
        timeout_seconds: float | None,
        wrap: Callable[[socket.socket], socket.socket] = lambda plain: plain,
    ) -> socket.socket:
        """A connection to the first address of that name that takes one. ``wrap``: adds TLS to a socket before it
        connects. Raises OSError and UnicodeError."""
        failure: OSError | None = None
        found = self.resolve(host, port)
        self.names.note(host, port, found)
        for family, _, _, _, address in found:
            connected = self.make_socket(family)
            try:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connected = wrap(connected)
                connected.settimeout(connect_timeout_seconds)
                connected.connect(address)
                connected.settimeout(timeout_seconds)
                return connected
            except OSError as error:
                connected.close()
                failure = error
            except BaseException:
                connected.close()
                raise
        raise failure or OSError(f"{host} has no address")

    def run_all(self, functions: Sequence[Callable[[], Result]]) -> list[Result | FreshnessError]:
        """The results of functions that wait side by side, or their errors; none runs after the return. A signal
        handler that raises in the middle would leave locks of ``threading`` and ``concurrent`` locked, and the
        process could not end. Each step here is atomic."""
        waiting = deque(enumerate(functions))
        outcomes: dict[int, tuple[Result | FreshnessError] | BaseException] = {}
        ended: SimpleQueue[None] = SimpleQueue()

        def run() -> None:
            try:
                number, function = waiting.popleft()
            except IndexError:  # taken back
                return
            try:
                outcomes[number] = (settle(function),)
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                outcomes[number] = error
            ended.put(None)

        try:
            for _ in functions:
                _thread.start_new_thread(run, ())
            while len(outcomes) < len(functions):
                ended.get()
        finally:
            begun = len(functions) - _take_back(waiting)
            while len(outcomes) < begun:
                time.sleep(ENDED_SEEN_SECONDS)
        return [_unwrap(outcomes[number]) for number in range(len(functions))]

    def wait(self, waiting: socket.socket, events: int, seconds: float) -> bool:
        """Whether one of these events of ``select.poll`` came in time."""
        watch = select.poll()
        watch.register(waiting, events)
        return bool(watch.poll(seconds * 1000))


def _take_back(waiting: deque[Any]) -> int:
    """Empty it. Returns the number of its elements, although other threads take some too."""
    taken = 0
    with suppress(IndexError):
        while True:
            waiting.pop()
            taken += 1
    return taken


def _unwrap(outcome: tuple[Result] | BaseException) -> Result:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome[0]


def settle(function: Callable[[], Result]) -> Result | FreshnessError:
    """Its result, or its error."""
    try:
        return function()
    except FreshnessError as error:
        return error


BLOCKING: Final = Network()
