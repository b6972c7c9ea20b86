"""A connection to a server as a cache node: what is the same for each technology of servers.

A flow is sent, and then its answers are received, on one connection. An error closes the connection and is raised,
and so no answer is taken for that of another flow, and no failure for a reply (F11). Used by the drivers, through
``freshness.nodes.memcached`` and ``freshness.nodes.redis``.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from freshness.algorithm.request import Get, Item, Reply, Request
from freshness.errors import ConfigError, FreshnessError, NodeTimedOut, NodeUnavailable
from freshness.login import TLS_HINT, PasswordTimedOut, describe_tls_failure
from freshness.network import BLOCKING, Network

log = logging.getLogger(__name__)

Connected = TypeVar("Connected")
Awaited = TypeVar("Awaited")


@dataclass(frozen=True, slots=True)
class Reach:
    """How a node is reached. ``timeout_seconds`` bounds each wait for the server to take or give the next bytes.
    ``make_tls`` and ``credentials``, user and password, are asked at each connection; a `ConfigError` of theirs is a
    node that is unavailable."""

    connect_timeout_seconds: float = 1.0
    timeout_seconds: float = 1.0
    make_tls: Callable[[], ssl.SSLContext] | None = None
    credentials: Callable[[], tuple[str, str]] | None = None
    network: Network = BLOCKING


class BoundedSocket:
    """A socket for a client library that trusts its server: fails when more than ``left`` bytes have come. The owner
    sets ``left`` again for each answer. ``connected``: the socket."""

    def __init__(self, connected: socket.socket, left: int) -> None:
        self.connected = connected
        self.left = left

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connected, name)

    def recv(self, *arguments: Any) -> bytes:
        received = self.connected.recv(*arguments)
        self._count(len(received))
        return received

    def recv_into(self, *arguments: Any) -> int:
        received = self.connected.recv_into(*arguments)
        self._count(received)
        return received

    def _count(self, received: int) -> None:
        self.left -= received
        if self.left < 0:
            raise OSError("its answer has no end")


class ServerNode(ABC, Generic[Connected, Awaited]):
    """See `freshness.algorithm.node.CacheNode`. ``Connected``: a connection; ``Awaited``: how answers are read."""

    technology: ClassVar[str]
    unreachable_hint: ClassVar[str]
    broken: ClassVar[tuple[type[BaseException], ...]] = (OSError,)
    """Errors of a connection that no other sentence explains."""

    def __init__(self, name: str, reach: Reach | None) -> None:
        self.name = name
        self._reach = reach or Reach()
        self._connection: Connected | None = None
        self._awaited: Awaited | None = None
        self._place: tuple[str, int] | None = None
        """Name and port of the server; None if it has no name that could lead elsewhere."""
        self._peer: tuple[Any, ...] | None = None
        """The address of the connection; None if the name cannot leave it."""

    def send(self, requests: Sequence[Request]) -> None:
        if self._awaited is not None:
            self.close()  # answers that nobody received must not be taken for the ones to come
        commands, awaited = self._encode(requests)
        try:
            connection = self._connection
            if connection is None:
                connection = self._begin()
            elif self._has_moved():
                raise NodeUnavailable(
                    f"{self.technology} {self.name} leads elsewhere than this connection, which is closed",
                    hint="the next one goes to the server that the name leads to",
                )
            self._awaited = awaited
            self._write(connection, commands)
        except BaseException as error:
            self._fail(error)
            raise

    @property
    def is_connected(self) -> bool:
        connection = self._connection
        if connection is None or self._awaited is not None:
            return connection is not None
        connected = self._find_socket(connection)
        # Nothing is awaited: what can be read is the end, or the answer to nothing
        has_ended = connected is not None and BLOCKING.wait(connected, select.POLLIN, 0)
        return not has_ended and not self._has_moved()

    def connect(self) -> None:
        if self._connection is None:
            with self._asking():
                pass

    def receive(self, *, is_late: bool = False) -> list[Reply]:
        awaited, connection = self._awaited, self._connection
        assert awaited is not None, "receive without send"
        assert connection is not None
        try:
            replies = self._decode(connection, awaited, is_late=is_late)
        except BaseException as error:
            self._fail(error)
            raise
        self._awaited = None
        return replies

    def perform(self, requests: Sequence[Request]) -> list[Reply]:
        self.send(requests)
        return self.receive()

    def find(self, key: bytes) -> bytes | None:
        (reply,) = self.perform((Get(key),))
        return reply.value if isinstance(reply, Item) else None

    def close(self) -> None:
        connection, self._connection, self._awaited = self._connection, None, None
        if connection is not None:
            self._disconnect(connection)

    @contextmanager
    def _asking(self) -> Iterator[Connected]:
        """A connection for questions outside of a flow."""
        assert self._awaited is None, "a question within a flow"
        try:
            connection = self._connection
            yield self._begin() if connection is None else connection
        except BaseException as error:
            self._fail(error)
            raise

    def _begin(self) -> Connected:
        """Connect, and note where to."""
        connection = self._open()
        connected = self._find_socket(connection)
        self._peer = None
        if connected is not None and self._place is not None:
            peer = connected.getpeername()[:2]
            # The name may never have had the address: 0.0.0.0 leads to 127.0.0.1
            is_said = peer[0] != self._place[0] and not self._reach.network.names.has_left(*self._place, peer)
            self._peer = peer if is_said else None
            count = self._reach.network.names.count_rivals(*self._place, peer)
            if count > 1:
                log.warning(
                    "%s %s leads to %d addresses: if they are several servers, reads find nothing on all but one; "
                    "name each in cache.nodes",
                    self.technology,
                    self.name,
                    count,
                )
        return connection

    def _has_moved(self) -> bool:
        peer, place = self._peer, self._place
        return peer is not None and place is not None and self._reach.network.names.has_left(*place, peer)

    def _fail(self, error: BaseException) -> None:
        """Close, and raise our own error for the known kinds of failure; return for all others."""
        was_open = self._connection is not None
        self.close()
        failure = self._translate(error, was_open=was_open) or self._translate_any(error, was_open=was_open)
        if failure is not None:
            raise failure from error

    def _translate_any(self, error: BaseException, *, was_open: bool) -> FreshnessError | None:
        node = f"{self.technology} {self.name}"
        if isinstance(error, ConfigError):
            kind = NodeTimedOut if isinstance(error, PasswordTimedOut) else NodeUnavailable
            return kind(f"{node}: {error.message}", hint=error.hint)
        tls_failure = describe_tls_failure(error) or describe_tls_failure(error.__context__)
        if tls_failure is not None:
            return NodeUnavailable(f"{node}: {tls_failure}", hint=TLS_HINT)
        if isinstance(error, self.broken):
            what = "broke the connection" if was_open else "cannot be reached"
            return NodeUnavailable(f"{node} {what}: {error}", hint=self.unreachable_hint)
        return None

    @abstractmethod
    def _encode(self, requests: Sequence[Request]) -> tuple[Any, Awaited]:
        """The commands of a flow, and how its answers are read. Raises `FormatError`."""

    @abstractmethod
    def _open(self) -> Connected:
        """Connect, and keep the connection. Raises what `_translate` knows."""

    @abstractmethod
    def _write(self, connection: Connected, commands: Any) -> None:
        """Write what `_encode` returned."""

    @abstractmethod
    def _decode(self, connection: Connected, awaited: Awaited, *, is_late: bool) -> list[Reply]:
        """The replies to a flow. ``is_late``: see `CacheNode.receive`."""

    @abstractmethod
    def _translate(self, error: BaseException, *, was_open: bool) -> FreshnessError | None:
        """The failures that only this technology knows, and those in time."""

    @abstractmethod
    def _find_socket(self, connection: Connected) -> socket.socket | None:
        """The socket of a connection; None if it has none."""

    @abstractmethod
    def _disconnect(self, connection: Connected) -> None:
        """Close the connection."""
