"""Blocking code on an event loop: its waits, its failures and what becomes of it when the task is cancelled."""

from __future__ import annotations

import asyncio
import gc
import select
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from appclient.connection import awaiting
from appclient.connection.awaiting import (
    KEPT_MAX,
    LOOP,
    AwaitingSocket,
    AwaitingTLSSocket,
    LoopGate,
    await_,
    run_awaiting,
)
from integration.servers.certificates import Authority

HOST = "127.0.0.1"
LARGE = bytes(range(256)) * 40_000
"""More than the buffers of two sockets hold."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def served(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server on the same loop: a function that blocked the loop would wait forever."""
    server = await asyncio.start_server(serve, HOST, 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(0.2)
    writer.close()


def exchange(connected: socket.socket, data: bytes) -> bytes:
    """Send all, and read as much. Both sides have more to say than fits between them."""
    received = bytearray()
    unsent = memoryview(data)
    while unsent:
        unsent = unsent[connected.send(unsent[:50_000]) :]
        received += connected.recv(65_536)
    while len(received) < len(data):
        received += connected.recv(65_536)
    return bytes(received)


# -- functions ---------------------------------------------------------------------------------------------------


def test_a_function_gets_the_results_and_errors_of_what_it_awaits() -> None:
    async def answer(value: int) -> int:
        await asyncio.sleep(0)
        if value < 0:
            raise ValueError(value)
        return value

    def work(start: int) -> int:
        try:
            await_(answer(-1))
        except ValueError:
            return await_(answer(start)) + await_(answer(1))
        raise AssertionError

    assert asyncio.run(run_awaiting(work, 41)) == 42
    with pytest.raises(ValueError, match="-7"):
        asyncio.run(run_awaiting(lambda: await_(answer(-7))))


def test_a_function_sees_the_context_of_its_task() -> None:
    user = ContextVar("user", default="nobody")

    async def serve(name: str) -> str:
        user.set(name)
        await asyncio.sleep(0)

        def work() -> str:
            await_(asyncio.sleep(0))
            return user.get()

        return await run_awaiting(work)

    async def run() -> list[str]:
        return list(await asyncio.gather(serve("Ada"), serve("Bob")))

    assert asyncio.run(run()) == ["Ada", "Bob"]


def test_functions_stand_inside_one_another() -> None:
    async def inner() -> int:
        return await run_awaiting(lambda: await_(asyncio.sleep(0, 1))) + 1

    assert asyncio.run(run_awaiting(lambda: await_(inner()) + 1)) == 3


def test_nothing_can_be_awaited_where_nobody_waits() -> None:
    waiting = asyncio.sleep(0)
    with pytest.raises(AssertionError, match="run_awaiting"):
        await_(waiting)
    waiting.close()


def test_a_cancelled_task_raises_where_its_function_waits_and_its_clean_up_may_wait_as_well() -> None:
    seen: list[str] = []

    def work() -> None:
        try:
            await_(asyncio.sleep(60))
        except asyncio.CancelledError:
            await_(asyncio.sleep(0))
            seen.append("cleaned up")
            raise

    async def run() -> None:
        task = asyncio.create_task(run_awaiting(work))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert seen == ["cleaned up"]


def test_nothing_of_a_function_that_has_ended_stays_in_memory() -> None:
    class Value:
        pass

    seen: list[weakref.ref[Value]] = []
    user: ContextVar[Value] = ContextVar("user")

    async def serve() -> None:
        given = Value()
        user.set(Value())
        answer = await run_awaiting(lambda _: Value(), given)
        seen.extend(map(weakref.ref, (given, user.get(), answer)))

    async def run() -> list[Value | None]:
        await asyncio.create_task(serve())
        await asyncio.sleep(0)  # the loop itself lets go of the task's context
        gc.collect()
        return [value() for value in seen]

    assert asyncio.run(run()) == [None] * 3


def test_a_function_that_fails_leaves_the_next_one_alone() -> None:
    def work(value: int) -> int:
        return 1 // await_(asyncio.sleep(0, value))

    async def run(value: int) -> int | BaseException:
        (answer,) = await asyncio.gather(run_awaiting(work, value), return_exceptions=True)
        return answer

    async def alternate() -> list[int | BaseException]:
        return [await run(value) for value in (1, 0, 1, 1)]

    first, failed, *others = asyncio.run(alternate())
    assert (first, others) == (1, [1, 1])
    assert isinstance(failed, ZeroDivisionError)


def test_a_burst_of_tasks_leaves_no_more_greenlets_than_are_kept() -> None:
    async def run() -> None:
        burst = (run_awaiting(await_, asyncio.sleep(0)) for _ in range(2 * KEPT_MAX))
        await asyncio.gather(*burst)

    for _ in range(2):
        asyncio.run(run())
        assert len(awaiting._KEPT.greenlets) == KEPT_MAX


# -- sockets -----------------------------------------------------------------------------------------------------


def test_a_socket_exchanges_more_than_its_buffers_hold() -> None:
    async def run() -> bytes:
        async with served(echo) as port:
            return await run_awaiting(lambda: exchange(LOOP.connect("localhost", port, 1.0, 5.0), LARGE))

    assert asyncio.run(run()) == LARGE


def test_a_file_of_a_socket_reads_whole_blocks() -> None:
    """As PyMySQL does."""

    def work(port: int) -> bytes:
        connected = LOOP.connect(HOST, port, 1.0, 5.0)
        connected.sendall(b"abc" * 1000)
        with connected.makefile("rb") as file:
            return file.read(3000)

    async def run() -> bytes:
        async with served(echo) as port:
            return await run_awaiting(work, port)

    assert asyncio.run(run()) == b"abc" * 1000


def test_a_wait_ends_with_its_time_out() -> None:
    def work(port: int) -> bytes:
        return LOOP.connect(HOST, port, 1.0, 0.01).recv(1)

    async def run() -> None:
        async with served(hang) as port:
            with pytest.raises(TimeoutError):
                await run_awaiting(work, port)

    asyncio.run(run())


def test_a_socket_with_a_time_out_of_nothing_does_not_wait() -> None:
    def work(port: int) -> None:
        connected = LOOP.connect(HOST, port, 1.0, 0)
        with pytest.raises(BlockingIOError):
            connected.recv(1)
        connected.close()

    async def run() -> None:
        async with served(hang) as port:
            await run_awaiting(work, port)

    asyncio.run(run())


def test_a_refused_connection_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port = taken.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            asyncio.run(run_awaiting(LOOP.connect, HOST, port, 1.0, 1.0))
    with pytest.raises(socket.gaierror):
        asyncio.run(run_awaiting(LOOP.connect, "no-such-host.invalid", 1, 1.0, 1.0))


def test_a_cancelled_read_leaves_nothing_on_the_loop() -> None:
    """A descriptor that stays registered would wake a task that reads another file of that number."""
    loops: list[Any] = []
    is_connected = asyncio.Event()

    def work(port: int) -> None:
        connected = LOOP.connect(HOST, port, 1.0, None)
        is_connected.set()
        try:
            connected.recv(1)
        finally:
            loops.append(asyncio.get_running_loop().remove_reader(connected.fileno()))
            connected.close()

    async def run() -> None:
        async with served(hang) as port:
            task = asyncio.create_task(run_awaiting(work, port))
            await is_connected.wait()
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert loops == [False]


Watched = Callable[[AwaitingSocket], None]


def with_watched(use: Watched, serve: Serve = echo) -> None:
    """Call a function with a socket that has waited for an answer."""

    def work(port: int) -> None:
        connected = LOOP.connect(HOST, port, 1.0, 5.0)
        assert isinstance(connected, AwaitingSocket)
        assert exchange(connected, b"first") == b"first"
        use(connected)
        connected.close()

    async def run() -> None:
        async with served(serve) as port:
            await run_awaiting(work, port)

    asyncio.run(run())


def is_watched(descriptor: int) -> bool:
    """Whether the loop did so until now."""
    return asyncio.get_running_loop().remove_reader(descriptor)


def test_a_later_wait_ends_with_its_own_time_out() -> None:
    def use(connected: AwaitingSocket) -> None:
        loop = asyncio.get_running_loop()
        for seconds in (5.0, None):
            connected.settimeout(seconds)
            loop.call_soon(connected._note_time, loop)  # for an earlier wait
            loop.call_later(0.01, connected.send, b"late")
            assert connected.recv(4) == b"late"
        connected.settimeout(5.0)
        assert exchange(connected, b"sets a timer") == b"sets a timer"
        loop.call_later(2.0, connected.send, b"too late")
        connected.settimeout(0.01)
        with pytest.raises(TimeoutError):
            connected.recv(1)

    with_watched(use)


@pytest.mark.parametrize("leave", [socket.socket.close, AwaitingSocket.detach])
def test_a_socket_that_is_given_up_is_left_by_the_loop(leave: Callable[[AwaitingSocket], object]) -> None:
    """A descriptor that stays registered would wake a task that reads another file of that number."""

    def use(connected: AwaitingSocket) -> None:
        descriptor, copy = connected.fileno(), connected.dup()
        type(connected).__dict__[leave.__name__](connected)
        assert not is_watched(descriptor)
        copy.close()

    with_watched(use)


def test_an_end_that_nobody_awaits_is_read_later() -> None:
    """The loop would find it again and again."""
    closed: list[asyncio.Event] = []

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        closed.append(asyncio.Event())
        writer.write(await reader.read(5))
        writer.close()
        await writer.wait_closed()
        closed[0].set()

    def use(connected: AwaitingSocket) -> None:
        await_(closed[0].wait())
        while connected._loop is not None:
            await_(asyncio.sleep(0))
        assert not is_watched(connected.fileno())
        assert connected.recv(1) == b""

    with_watched(use, answer_once)


def test_a_socket_waits_on_the_loop_that_runs() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, AwaitingSocket(fileno=ours.detach()) as connected:
        connected.settimeout(5.0)

        def work() -> bytes:
            asyncio.get_running_loop().call_soon(theirs.send, b"answer")
            return connected.recv(6)

        assert [asyncio.run(run_awaiting(work)) for _ in range(2)] == [b"answer"] * 2


def test_a_wait_for_a_socket_by_its_network_leaves_the_next_one_whole() -> None:
    def use(connected: AwaitingSocket) -> None:
        connected.sendall(b"second")
        assert LOOP.wait(connected, select.POLLIN, 5.0)
        assert connected.recv(6) == b"second"
        assert exchange(connected, b"third") == b"third"

    with_watched(use)


# -- TLS ---------------------------------------------------------------------------------------------------------


def test_a_socket_with_tls_exchanges_more_than_its_buffers_hold(tmp_path: Path) -> None:
    files = Authority(tmp_path).certify(HOST)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.cert, files.key)
    client = ssl.create_default_context(cafile=files.ca)
    client.sslsocket_class = AwaitingTLSSocket

    def connect(port: int, name: str) -> socket.socket:
        return client.wrap_socket(LOOP.connect(HOST, port, 1.0, 5.0), server_hostname=name)

    async def run() -> bytes:
        async with served(echo, server) as port:
            received = await run_awaiting(lambda: exchange(connect(port, HOST), LARGE))
            with pytest.raises(ssl.SSLCertVerificationError):
                await run_awaiting(connect, port, "127.0.0.2")
            return received

    assert asyncio.run(run()) == LARGE


def test_a_handshake_with_tls_ends_with_its_time_out(tmp_path: Path) -> None:
    client = ssl.create_default_context(cafile=Authority(tmp_path).ca)
    client.sslsocket_class = AwaitingTLSSocket

    def work(port: int) -> None:
        client.wrap_socket(LOOP.connect(HOST, port, 1.0, 0.01), server_hostname=HOST)

    async def run() -> None:
        async with served(hang) as port:
            with pytest.raises(TimeoutError):
                await run_awaiting(work, port)

    asyncio.run(run())


# -- waiting for one another -------------------------------------------------------------------------------------


def test_those_that_wait_at_a_gate_are_let_through_one_by_one() -> None:
    async def run() -> list[bool]:
        gate = LoopGate()
        free: list[bool] = []

        def take() -> bool:
            return bool(free) and free.pop()

        tasks = [asyncio.create_task(run_awaiting(gate.wait_for, take, 5.0)) for _ in range(3)]
        await asyncio.sleep(0)
        assert gate.waiting == 3
        tasks[0].cancel()
        free.extend([True, True])
        gate.wake()
        gate.wake()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers[0], asyncio.CancelledError)
        assert gate.waiting == 0
        return [bool(each) for each in answers[1:]]

    assert asyncio.run(run()) == [True, True]


def test_a_wait_at_a_gate_ends_in_time() -> None:
    async def run() -> bool:
        return await run_awaiting(LoopGate().wait_for, lambda: False, 0.01)

    assert asyncio.run(run()) is False
