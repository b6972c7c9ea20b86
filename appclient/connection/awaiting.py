"""Blocking code on an event loop: it waits for a socket as a coroutine does, and the loop runs other tasks.

`run_awaiting` runs a function in a greenlet of the task that awaits it. When the function has to wait, it calls
`await_`, which hands an awaitable to the task. So the whole library, PyMySQL and redis-py among it, is the same code
for threads and for tasks: only its sockets are others. If the task is cancelled, the waiting function raises
CancelledError; it closes its connection, as after every other interruption (F46).

Used by ``appclient.async_cache``.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

from freshness.errors import FreshnessError, required_extra
from freshness.network import Network, settle

with required_extra("async"):
    from greenlet import getcurrent, greenlet

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


KEPT_MAX: Final = 128
"""Greenlets that a thread keeps for its next functions: to make one takes longer than the rest of a hit."""


class _Awaiting(greenlet):
    """Runs functions that may call `await_`."""


def _run_all(function: Any, results: Any) -> NoReturn:
    """One after the other. An error ends it."""
    while True:
        results.append(function())
        function = results = None  # what waits for the next one keeps nothing alive, nor itself
        parent = getcurrent().parent
        assert parent is not None
        function, results = parent.switch()


class _Kept(threading.local):
    def __init__(self) -> None:
        self.greenlets: list[_Awaiting] = []


_KEPT: Final = _Kept()


async def run_awaiting(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """The result of ``function``, which may call `await_`."""
    kept, current = _KEPT.greenlets, getcurrent()
    running = kept.pop() if kept else _Awaiting(_run_all)
    running.parent = current
    running.gr_context = current.gr_context  # the context variables of the task
    results: list[Result] = []
    waiting: Any = running.switch(partial(function, *args, **kwargs), results)
    while not results:
        try:
            answer = await waiting
        except BaseException as error:  # noqa: BLE001 - raised in the function, which cleans up and lets it out
            waiting = running.throw(error)
        else:
            waiting = running.switch(answer)
    running.gr_context = None
    if len(kept) < KEPT_MAX:
        kept.append(running)
    return results[0]


def await_(awaitable: Awaitable[Result]) -> Result:
    """The result of ``awaitable``, in a function that `run_awaiting` runs."""
    current = getcurrent()
    assert isinstance(current, _Awaiting), "called by no function of run_awaiting"
    assert current.parent is not None
    result: Result = current.parent.switch(awaitable)
    return result


def _settle(future: asyncio.Future[bool], answer: bool) -> None:
    if not future.done():
        future.set_result(answer)


def _wait_ready(descriptor: int, reads: bool, writes: bool, seconds: float | None) -> bool:
    """Whether the descriptor became ready in time."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[bool] = loop.create_future()
    timer = None if seconds is None else loop.call_later(seconds, _settle, ready, False)
    if reads:
        loop.add_reader(descriptor, _settle, ready, True)
    if writes:
        loop.add_writer(descriptor, _settle, ready, True)
    try:
        return await_(ready)
    finally:
        if reads:
            loop.remove_reader(descriptor)
        if writes:
            loop.remove_writer(descriptor)
        if timer is not None:
            timer.cancel()


class AwaitingSocket(socket.socket):
    """A socket that waits by `await_`. Its descriptor never blocks; its time-out is kept here. Its loop receives what
    is awaited, and goes on watching it: to begin takes longer than the rest of a wait. It ends when something comes
    which nobody awaits."""

    _seconds: float | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    """The loop that watches it."""
    _awaited: tuple[asyncio.Future[Any], Callable[[], Any]] | None = None
    _timer: asyncio.TimerHandle | None = None
    _until: float | None = None

    def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:
        super().__init__(family, type, proto, fileno)
        super().setblocking(False)

    def _receive(self, receive: Callable[[], Result]) -> Result:
        try:
            return receive()
        except BlockingIOError:
            if self._seconds == 0:
                raise
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self.unwatch()
            loop.add_reader(self.fileno(), self._note_readable)
            self._loop = loop
        future: asyncio.Future[Result] = loop.create_future()
        self._awaited = future, receive
        self._until = None if self._seconds is None else loop.time() + self._seconds
        if self._until is not None and (self._timer is None or self._timer.when() > self._until):
            self._set_timer(loop, self._until)
        try:
            return await_(future)
        except BaseException:
            self.unwatch()
            raise
        finally:
            self._awaited = None

    def _note_readable(self) -> None:
        if self._awaited is None or self._awaited[0].done():
            self.unwatch()
            return
        future, receive = self._awaited
        try:
            future.set_result(receive())
        except BlockingIOError:
            pass
        except OSError as error:
            future.set_exception(error)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(until, self._note_time, loop)

    def _note_time(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer serves many waits, each of which moves its end."""
        self._timer = None
        if self._awaited is None or self._awaited[0].done() or self._until is None:
            return
        if loop.time() < self._until:
            self._set_timer(loop, self._until)
        else:
            self._awaited[0].set_exception(TimeoutError("timed out"))

    def unwatch(self) -> None:
        """Leave the loop; the next wait joins one again."""
        loop, timer = self._loop, self._timer
        self._loop = self._timer = None
        if timer is not None:
            timer.cancel()
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self.fileno())

    def close(self) -> None:
        self.unwatch()
        super().close()

    def detach(self) -> int:
        self.unwatch()
        return super().detach()

    def gettimeout(self) -> float | None:
        return self._seconds

    def settimeout(self, value: float | None) -> None:
        self._seconds = value

    def setblocking(self, flag: bool) -> None:
        self._seconds = None if flag else 0

    def _wait(self, *, reads: bool = False, writes: bool = False) -> None:
        if self._seconds == 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        if not _wait_ready(self.fileno(), reads, writes, self._seconds):
            raise TimeoutError("timed out")

    def connect(self, address: Any) -> None:
        failure = super().connect_ex(address)
        if failure in (errno.EINPROGRESS, errno.EAGAIN):
            self._wait(writes=True)
            failure = self.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure:
            raise OSError(failure, os.strerror(failure))

    def recv(self, size: int, flags: int = 0) -> bytes:
        return self._receive(partial(super().recv, size, flags))

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        return self._receive(partial(super().recv_into, buffer, nbytes, flags))

    def send(self, data: Any, flags: int = 0) -> int:
        while True:
            try:
                return super().send(data, flags)
            except BlockingIOError:
                self._wait(writes=True)

    def sendall(self, data: Any, flags: int = 0) -> None:
        unsent = memoryview(data)
        while unsent:
            unsent = unsent[self.send(unsent, flags) :]


class AwaitingTLSSocket(ssl.SSLSocket, AwaitingSocket):
    """The same with TLS: for ``SSLContext.sslsocket_class``."""

    def _repeat(self, function: Callable[..., Result], *arguments: Any) -> Result:
        while True:
            try:
                return function(*arguments)
            except ssl.SSLWantReadError:
                if self._seconds == 0:
                    raise
                self._wait(reads=True)
            except ssl.SSLWantWriteError:
                if self._seconds == 0:
                    raise
                self._wait(writes=True)

    def do_handshake(self, block: bool = False) -> None:
        self._repeat(super().do_handshake)

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        return self._repeat(super().read, len, buffer)

    def send(self, data: Any, flags: int = 0) -> int:
        return self._repeat(super().send, data, flags)


class LoopGate:
    """See `freshness.network.Gate`: for tasks of one event loop."""

    def __init__(self) -> None:
        self.waiting = 0
        self._futures: deque[asyncio.Future[bool]] = deque()

    def wait_for(self, is_ready: Callable[[], bool], seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        self.waiting += 1
        try:
            while not is_ready():
                future: asyncio.Future[bool] = loop.create_future()
                timer = loop.call_at(until, _settle, future, False)
                self._futures.append(future)
                try:
                    if not await_(future):
                        return False
                except BaseException:
                    if future.done() and not future.cancelled():
                        self.wake()  # this one was woken, and another one looks in its place
                    raise
                finally:
                    timer.cancel()
        finally:
            self.waiting -= 1
        return True

    def wake(self) -> None:
        while self._futures:
            future = self._futures.popleft()
            if not future.done():
                future.set_result(True)
                return


async def _gather(functions: Sequence[Callable[[], Result]]) -> list[Result | FreshnessError]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_awaiting(settle, function)) for function in functions]
    return [task.result() for task in tasks]


class LoopNetwork(Network):
    """Lets the event loop run during a wait. Its methods are called by a function of `run_awaiting`."""

    tls_socket = AwaitingTLSSocket

    def offload(self, function: Callable[[], Result]) -> Result:
        return await_(asyncio.get_running_loop().run_in_executor(None, function))

    def sleep(self, seconds: float) -> None:
        await_(asyncio.sleep(seconds))

    def open_gate(self) -> LoopGate:
        return LoopGate()

    def make_socket(self, family: int) -> socket.socket:
        return AwaitingSocket(family, socket.SOCK_STREAM)

    def resolve(self, host: str, port: int) -> Sequence[tuple[Any, ...]]:
        loop = asyncio.get_running_loop()
        return await_(loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP))

    def run_all(self, functions: Sequence[Callable[[], Result]]) -> list[Result | FreshnessError]:
        return await_(_gather(functions))

    def wait(self, waiting: socket.socket, events: int, seconds: float) -> bool:
        if isinstance(waiting, AwaitingSocket):
            waiting.unwatch()
        reads, writes = bool(events & select.POLLIN), bool(events & select.POLLOUT)
        return _wait_ready(waiting.fileno(), reads, writes, seconds)


LOOP: Final = LoopNetwork()
