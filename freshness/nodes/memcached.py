"""A memcached server as a cache node: a socket of its own, on which the meta protocol is pipelined.

One `MemcachedNode` per thread and server. pymemcache's client asks a new connection for version and settings, before
the first flow (``freshness.nodes`` says why not later). This module must never turn a failure into a reply: every
error on a connection closes it and raises.
"""

from __future__ import annotations

import _socket
import re
import select
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from pymemcache.client.base import Client, normalize_server_spec
from pymemcache.exceptions import MemcacheError, MemcacheUnexpectedCloseError

from freshness.algorithm.node import LATE_SECONDS
from freshness.algorithm.request import Reply, Request, Strikes
from freshness.errors import ConfigError, FreshnessError, NodeTimedOut, NodeUnavailable, NodeUnsuitable
from freshness.nodes.meta import (
    FENCE,
    Plan,
    ProtocolError,
    ReplyReader,
    decode_flow,
    encode_find,
    encode_flow,
    encode_strikes,
    plan_strikes,
    read_value,
)
from freshness.nodes.servernode import BoundedSocket, Reach, ServerNode

OLDEST_VERSION: Final = (1, 6, 13)
"""Meta commands are final since 1.6.10; ``md`` ignores its C flag before 1.6.13, so that a conditional delete
would remove what it did not see."""

LINES_BYTES: Final = 262_144
RECEIVE_BYTES: Final = 16_384
RECEIVE_MORE_BYTES: Final = 262_144
STRIKES_PER_WRITE: Final = 1000
ANSWERS_BYTES_MAX: Final = 1 << 20
"""Bytes of all that a server says about itself: some ten thousand."""

TLS_RECORD_BYTES: Final = 16_384
"""The most that a TLS record holds, and that memcached reads at once; see `_pack_records`."""

UNREACHABLE_HINT: Final = "see that memcached runs there and is reachable; nothing was concluded from the silence"


PROXY_HINT: Final = "name each memcached itself in cache.nodes: behind a proxy nobody knows which server has a key"


class MemcachedNode(ServerNode[socket.socket, Plan]):
    """A connection to one memcached server; see `freshness.algorithm.node.CacheNode`. ``name``: ``host:port``,
    ``[ipv6]:port`` or the path of a socket. The credentials are those of memcached's ``-Y`` file. The first `send` on
    a connection asks the server for its version and for CAS, in two round trips."""

    technology = "memcached"
    unreachable_hint = UNREACHABLE_HINT

    def __init__(self, name: str, reach: Reach | None = None) -> None:
        super().__init__(name, reach)
        try:
            self._address: tuple[str, int] | str = normalize_server_spec(name)
        except ValueError as error:
            raise ConfigError(f"cache node {name!r} is not an address", hint="write host:port") from error
        self._place = self._address if isinstance(self._address, tuple) else None
        self._connections = -1  # the first one is number 0
        self._waits_in_kernel = False
        self._received = b""
        self._receive_bytes = RECEIVE_BYTES

    def find(self, key: bytes) -> bytes | None:
        connected = self._connection
        if connected is None or self._awaited is not None:
            return super().find(key)
        command = encode_find(key)
        try:
            connected.sendall(command)
            received = connected.recv(RECEIVE_BYTES)
            if received == b"EN\r\n":
                return None
            # The common answer has come whole. One that has not is read by the rules of the protocol.
            head, _, value = received.partition(b"\r\n")
            if head == b"VA %d" % (len(value) - 2) and value.endswith(b"\r\n"):
                return value[:-2]
            return read_value(ReplyReader(self._receive, received))
        except BaseException as error:
            self._fail(error)
            raise

    def describe(self) -> dict[str, dict[str, str]]:
        """See `DescribedNode`: ``version``, ``stats settings`` and ``stats``, by the names that the server gives."""
        with self._asking() as connection:
            client = self._make_client(connection)
            version = _ask(client.version).decode("latin-1")
            return {
                "version": {"version": version},
                "stats settings": _texts(_ask(client.stats, "settings")),
                "stats": _texts(_ask(client.stats)),
            }

    def read_lines(self, command: bytes) -> Generator[bytes]:
        """The lines of the answer to a command that is not a request, without their ``\\n``, as they come, until the
        server closes the connection. At the end it is closed in any case. Fails as `send`."""
        rest = b""
        try:
            with self._asking() as connection:
                connection.sendall(command)
                while received := connection.recv(LINES_BYTES):
                    *lines, rest = (rest + received).split(b"\n")
                    yield from lines
        finally:
            self.close()

    def _encode(self, requests: Sequence[Request]) -> tuple[Iterable[list[bytes]], Plan]:
        # By type, as in `encode_flow`
        if type(requests) is Strikes and len(requests) > STRIKES_PER_WRITE and self._waits_in_kernel:
            return _encode_in_pieces(requests), plan_strikes(requests)
        number = self._connections if self._connection is not None else self._connections + 1
        commands, plan = encode_flow(requests, number)
        return (commands,) if commands else (), plan

    def _decode(self, connection: socket.socket, awaited: Plan, *, is_late: bool) -> list[Reply]:
        reader = ReplyReader(self._receive, self._received)
        if is_late:
            with self._hurrying(connection):
                replies = decode_flow(awaited, reader)
        else:
            replies = decode_flow(awaited, reader)
        self._received = b""
        return replies

    @contextmanager
    def _hurrying(self, connection: socket.socket) -> Iterator[None]:
        """Waits take `LATE_SECONDS` at most. After a failure the connection is closed anyway."""
        self._bound_waits(connection, LATE_SECONDS)
        yield
        self._bound_waits(connection, self._reach.timeout_seconds)

    def _bound_waits(self, connection: socket.socket, seconds: float) -> None:
        if self._waits_in_kernel:
            _wait_in_kernel(connection, seconds)
        else:
            connection.settimeout(seconds)

    def _translate(self, error: BaseException, *, was_open: bool) -> FreshnessError | None:
        if isinstance(error, ProtocolError) and "out of memory" in str(error):
            return NodeUnavailable(
                f"memcached {self.name} has no memory for another item",
                hint="give it more memory, start it without -M, or take its other users elsewhere",
            )
        if isinstance(error, ProtocolError):
            return NodeUnavailable(
                f"memcached {self.name} gave an answer that does not fit: {error}",
                hint="the connection was closed; see that this address is a memcached server, not a proxy, and that"
                " it takes more connections (-c)",
            )
        if isinstance(error, TimeoutError | BlockingIOError):  # the latter if the socket waits in the kernel
            took = f"did not answer within {self._reach.timeout_seconds} s"
            what = took if was_open else "did not accept a connection"
            return NodeTimedOut(f"memcached {self.name} {what}", hint=UNREACHABLE_HINT)
        return None

    def _open(self) -> socket.socket:
        try:
            connection = self._connect()
        except UnicodeError as error:  # a host name that cannot be one
            raise NodeUnavailable(
                f"memcached {self.name} cannot be resolved: {error}", hint="correct the name"
            ) from error
        self._connection = connection
        self._connections += 1
        self._received = b""
        self._receive_bytes = RECEIVE_BYTES
        self._waits_in_kernel = _wait_in_kernel(connection, self._reach.timeout_seconds)
        self._greet(connection)
        return connection

    def _find_socket(self, connection: socket.socket) -> socket.socket:
        return connection

    def _disconnect(self, connection: socket.socket) -> None:
        connection.close()

    def _connect(self) -> socket.socket:
        """A connection to the first address of the name that takes one; TLS is for TCP only. Raises OSError."""
        reach = self._reach
        seconds = reach.connect_timeout_seconds, reach.timeout_seconds
        if isinstance(self._address, tuple):
            host, port = self._address
            if reach.make_tls is None:
                return reach.network.connect(host, port, *seconds)
            wrap = partial(reach.make_tls().wrap_socket, server_hostname=host)
            return reach.network.connect(host, port, *seconds, wrap)
        connected = reach.network.make_socket(socket.AF_UNIX)
        try:
            connected.settimeout(seconds[0])
            connected.connect(self._address)
            connected.settimeout(seconds[1])
        except BaseException:
            connected.close()
            raise
        return connected

    def _greet(self, connected: socket.socket) -> None:
        """Ask once per connection whether the server can serve at all. Raises `NodeUnsuitable`, `ProtocolError` and
        OSError."""
        client = self._make_client(connected)
        if self._reach.credentials is not None:
            try:
                is_stored = _ask(client.set, "auth", " ".join(self._reach.credentials()).encode(), noreply=False)
            except ProtocolError:
                is_stored = False
            if not is_stored:
                raise self._unsuitable(
                    "refuses the credentials",
                    "correct the user and the password of this node; they are read again for the next connection",
                )
        try:
            version = _ask(client.version).decode("latin-1")
        except ProtocolError as error:
            if "unauthenticated" in str(error):
                raise self._unsuitable(
                    "wants credentials", "give the user and the password of its -Y file"
                ) from error
            if "unexpected response" in str(error):
                raise self._unsuitable(f"is no memcached: it answers {error}", PROXY_HINT) from error
            raise  # ERROR may be that of a server that takes no more connections
        proxy = re.search("mcrouter|twemproxy|nutcracker", version)
        if proxy is not None:
            raise self._unsuitable(f"is a proxy, {proxy[0]}", PROXY_HINT)
        oldest = ".".join(map(str, OLDEST_VERSION))
        numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
        if numbers is None or tuple(map(int, numbers.groups())) < OLDEST_VERSION:
            raise self._unsuitable(f"has version {version!r}", f"install {oldest} or later: it needs meta commands")
        try:
            settings = _ask(client.stats, "settings")
        except ProtocolError as error:
            if not re.match("MemcacheUnknownCommandError|MemcacheClientError", str(error)):
                raise
            raise self._unsuitable(f"has version {version!r} and does not tell its settings", PROXY_HINT) from error
        if settings.get(b"cas_enabled") not in (b"yes", True):
            raise self._unsuitable("has no CAS", "start it without -C (--disable-cas): versions would all be 0")
        if settings.get(b"memory_file") not in (None, b"", b"(null)"):
            raise self._unsuitable(
                f"keeps its memory in {settings[b'memory_file'].decode(errors='replace')}",
                "start it without -e (--memory-file): a restart would bring back old data under its old life",
            )

    def _make_client(self, connected: socket.socket) -> Client:
        client = Client(self._address)
        client.sock = BoundedSocket(connected, ANSWERS_BYTES_MAX)
        return client

    def _unsuitable(self, what: str, hint: str) -> NodeUnsuitable:
        return NodeUnsuitable(f"memcached {self.name} {what}", hint=hint)

    def _receive(self) -> bytes:
        connected = self._connection
        assert connected is not None
        received = connected.recv(self._receive_bytes)
        if not received:
            raise ConnectionResetError("the server closed the connection")
        if len(received) == self._receive_bytes:
            self._receive_bytes = RECEIVE_MORE_BYTES
        return received

    def _write(self, connection: socket.socket, commands: Iterable[list[bytes]]) -> None:
        for piece in commands:
            self._write_piece(connection, piece)

    def _write_piece(self, connected: socket.socket, commands: list[bytes]) -> None:
        """Write commands of any size without waiting for a server that itself waits for us to read. The server read
        all of the previous flow before it gave its last answer, so there is room for the beginning of a flow."""
        self._receive_bytes = RECEIVE_BYTES
        if self._reach.make_tls is not None:
            self._write_and_read(connected, _pack_records(commands))
            return
        data = b"".join(commands)
        try:
            # A socket that waits in the kernel would wait until all is taken, and the server may wait for us.
            sent = connected.send(data, socket.MSG_DONTWAIT if self._waits_in_kernel else 0)
        except BlockingIOError:
            sent = 0  # the previous piece of this flow has taken all the room
        if sent < len(data):
            self._write_and_read(connected, [memoryview(data)[sent:]])

    def _write_and_read(self, connected: socket.socket, pieces: Sequence[bytes | memoryview]) -> None:
        """Write the pieces as the socket takes them, and keep the bytes that come back for `receive`."""
        received = []
        connected.settimeout(0)
        for piece in pieces:
            unsent = piece
            while unsent:
                is_stuck = True
                awaited = select.POLLIN
                try:
                    unsent = unsent[connected.send(unsent) :]
                    is_stuck = False
                except ssl.SSLWantReadError:
                    pass  # TLS itself has something to read first
                except (BlockingIOError, ssl.SSLWantWriteError):
                    awaited |= select.POLLOUT
                try:
                    received.append(connected.recv(RECEIVE_MORE_BYTES))
                    if not received[-1]:
                        raise ConnectionResetError("the server closed the connection")
                    is_stuck = False
                except (BlockingIOError, ssl.SSLWantReadError):
                    pass
                except ssl.SSLWantWriteError:
                    awaited |= select.POLLOUT
                if is_stuck and not self._reach.network.wait(connected, awaited, self._reach.timeout_seconds):
                    raise TimeoutError
        connected.settimeout(None if self._waits_in_kernel else self._reach.timeout_seconds)
        self._received += b"".join(received)


def _encode_in_pieces(strikes: Strikes) -> Iterator[list[bytes]]:
    """Thousands of them, of which the server works on one piece while the next is made."""
    for start in range(0, len(strikes), STRIKES_PER_WRITE):
        yield encode_strikes(strikes, start, start + STRIKES_PER_WRITE)
    yield [FENCE]


def _ask(command: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The answer of a command of pymemcache; its failures as those of a flow. Raises `ProtocolError` and OSError."""
    try:
        return command(*arguments, **options)
    except MemcacheUnexpectedCloseError as error:
        raise ConnectionResetError("the server closed the connection") from error
    except (MemcacheError, LookupError, ValueError) as error:  # the latter two if it trusts a line too far
        raise ProtocolError(f"{type(error).__name__} {error}") from error


def _texts(stats: Mapping[bytes, object]) -> dict[str, str]:
    return {
        name.decode("latin-1"): value.decode("latin-1") if isinstance(value, bytes) else str(value)
        for name, value in stats.items()
    }


def _wait_in_kernel(connected: socket.socket, timeout_seconds: float) -> bool:
    """Let the kernel bound each wait, if it can: Python's own timeouts cost a ``poll`` before every call. Not for
    TLS, nor for sockets that another library has put in the place of Python's (gevent), which would wait without end.
    """
    if sys.platform != "linux" or type(connected).recv is not _socket.socket.recv:
        return False
    whole = int(timeout_seconds)
    bound = struct.pack("@ll", whole, max(1, int((timeout_seconds - whole) * 1e6)))  # 0, 0 would be no bound
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connected.setsockopt(socket.SOL_SOCKET, option, bound)
    connected.settimeout(None)
    return True


def _pack_records(commands: Sequence[bytes]) -> list[bytes]:
    """Pieces to write one by one over TLS, each of whole commands. memcached goes to sleep over what it has decrypted
    and not yet parsed, until more arrives: measured on 1.6.18, a pipeline hangs when a record ends within a command,
    and never when records end where commands do."""
    records: list[bytes] = []
    record: list[bytes] = []
    record_bytes = 0
    for command in commands:
        if record and record_bytes + len(command) > TLS_RECORD_BYTES:
            records.append(b"".join(record))
            record, record_bytes = [], 0
        record.append(command)
        record_bytes += len(command)
    records.append(b"".join(record))
    return records
