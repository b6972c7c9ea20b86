"""A Redis server as a cache node, for those who run Redis and not memcached.

This module connects, loads the scripts of ``freshness.nodes.scripts``, and explains failures. It must never turn a
failure into a reply (F11); redis-py's own retries are off. One `RedisNode` per thread and server.

A server that becomes a replica gets other data, and its connections live on. So the last answer of each flow that
reads says of which data they all are; if these are not the data that the connection was opened on, it fails (F129).
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final, NoReturn, TypeAlias

from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, SSLConnection
from redis.credentials import CredentialProvider
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterCrossSlotError,
    ClusterDownError,
    InvalidResponse,
    NoPermissionError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from freshness.algorithm.node import LATE_SECONDS
from freshness.algorithm.request import Get, Reply, Request
from freshness.errors import ConfigError, FreshnessError, NodeRefused, NodeTimedOut, NodeUnavailable, NodeUnsuitable
from freshness.network import Network
from freshness.nodes.scripts import (
    ITEM_BYTES_MAX,
    SCRIPTS,
    TOO_LARGE,
    Answers,
    Command,
    DecodeAnswers,
    TooLarge,
    UnfitAnswer,
    encode,
    find_replication,
    is_out_of_memory,
)
from freshness.nodes.servernode import BoundedSocket, Reach, ServerNode

KEYS_PER_SCAN: Final = 1_000
"""Places of its table that the server looks at for one answer: a fraction of a millisecond, in which it serves
nobody else."""

ANSWER_BYTES_MAX: Final = 1 << 22
"""Bytes of one answer: an item has `ITEM_BYTES_MAX`, and the answer to a SCAN some thousand keys."""

UNREACHABLE_HINT: Final = "see that Redis runs there and is reachable; nothing was concluded from the silence"

RIGHTS: Final = "+@scripting +@string +del +exists +pttl +scan +info +config|get +time"
"""All that a user needs, as Redis spells it: those of the scripts' commands too, and the last five for those who look
at the node."""

_SCRIPT_REFUSED: Final = ("user executing the script", "ACL failure in script")
"""Errors of Redis and Valkey if a user may run a script, but not a command in it."""

_Pending: TypeAlias = tuple[list[tuple[int, DecodeAnswers]], bool]
"""How the answers are read, and whether the last one says which data they are of."""


class _DialledConnection(Connection):
    """redis-py's connection, on a socket of a `Network`."""

    def __init__(self, network: Network, **options: Any) -> None:
        self._network = network
        super().__init__(**options)  # type: ignore[no-untyped-call]

    def _connect(self) -> socket.socket:
        return self._network.connect(self.host, self.port, self.socket_connect_timeout, self.socket_timeout)


class _BoundedConnection(Connection):
    """``bounded``: the socket that redis-py reads from."""

    bounded: BoundedSocket

    def _connect(self) -> Any:
        self.bounded = BoundedSocket(super()._connect(), ANSWER_BYTES_MAX)  # type: ignore[no-untyped-call]
        return self.bounded


class _PlainConnection(_BoundedConnection, _DialledConnection):
    pass


class _TlsConnection(_BoundedConnection, SSLConnection, _DialledConnection):
    """The same with TLS. It trusts whom our context trusts; redis-py's own trusts those of the system besides."""

    def __init__(self, network: Network, make_tls: Callable[[], ssl.SSLContext], **options: Any) -> None:
        super().__init__(network=network, **options)
        self._make_tls = make_tls

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        return self._make_tls().wrap_socket(sock, server_hostname=self.host)


class _Credentials(CredentialProvider):
    def __init__(self, find: Callable[[], tuple[str, str]]) -> None:
        self._find = find

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        user, password = self._find()
        return (user, password) if user else (password,)


class RedisNode(ServerNode[AbstractConnection, _Pending]):
    """A connection to one Redis server; see `freshness.algorithm.node.CacheNode`. ``name``: ``host:port``. An empty
    user of the credentials is the default one. ``make_connection``: replaces connecting by name, e.g. by fakeredis.
    """

    technology = "redis"
    unreachable_hint = UNREACHABLE_HINT
    broken = (OSError, RedisError)
    identify: ClassVar[Command] = ("INFO", "replication")

    def __init__(
        self,
        name: str,
        reach: Reach | None = None,
        *,
        make_connection: Callable[[], AbstractConnection] | None = None,
    ) -> None:
        super().__init__(name, reach)
        host, _, port = name.rpartition(":")
        if make_connection is None and not (host and port.isdecimal()):
            raise ConfigError(f"cache node {name!r} is not an address", hint="write host:port")
        if make_connection is None:
            self._place = host.strip("[]"), int(port)
        self._make_connection = make_connection or self._connect_by_name
        self._replication = b""
        """The ``master_replid`` of the server when the connection was opened."""

    def describe(self) -> dict[str, dict[str, str]]:
        """See `DescribedNode`: ``INFO``, ``CONFIG`` (GET *) and ``TIME`` (seconds)."""
        with self._asking() as connection:
            self._write(connection, [("INFO",), ("CONFIG", "GET", "*"), ("TIME",)])
            info, config, now = self._read(connection, 3)
            try:
                return {
                    "INFO": _parse_info(info),
                    "CONFIG": {} if isinstance(config, ResponseError) else _pairs(config),
                    "TIME": {} if isinstance(now, ResponseError) else {"seconds": now[0].decode()},
                }
            except (AttributeError, LookupError, TypeError) as error:
                raise UnfitAnswer(f"INFO, CONFIG and TIME: {error}") from error

    def scan(self, prefix: bytes) -> Iterator[bytes]:
        """The keys that begin so, by SCAN: one that is there all the while comes, perhaps twice. Fails as `send`."""
        pattern, cursor = re.sub(rb"[*?\[\]\\^]", rb"\\\g<0>", prefix) + b"*", b"0"
        while True:
            with self._asking() as connection:
                self._write(connection, [("SCAN", cursor, "MATCH", pattern, "COUNT", KEYS_PER_SCAN)])
                (answer,) = self._read(connection, 1)
                if isinstance(answer, ResponseError):
                    self._raise_refusal("SCAN", answer)
                if not isinstance(answer, list) or [*map(type, answer)] != [bytes, list]:
                    raise UnfitAnswer(f"expected a cursor and keys, got {answer!r:.200}")
            cursor, keys = answer
            yield from keys
            if cursor == b"0":
                return

    def _encode(self, requests: Sequence[Request]) -> tuple[list[Command], _Pending]:
        commands: list[Command] = []
        pending: list[tuple[int, DecodeAnswers]] = []
        is_asked = False
        for request in requests:
            is_asked |= isinstance(request, Get)
            try:
                own_commands, decode = encode(request, self._find_data)
            except TooLarge as error:
                raise NodeUnavailable(
                    f"redis {self.name} was not given {error} bytes: {TOO_LARGE}",
                    hint=f"items have at most {ITEM_BYTES_MAX} bytes",
                ) from None
            commands += own_commands
            pending.append((len(own_commands), decode))
        if is_asked:
            commands.append(self.identify)
        return commands, (pending, is_asked)

    def _find_data(self) -> bytes:
        self.connect()
        return self._replication

    def _decode(self, connection: AbstractConnection, awaited: _Pending, *, is_late: bool) -> list[Reply]:
        timeout: dict[str, float] = {"timeout": LATE_SECONDS} if is_late else {}
        pending, is_asked = awaited
        try:
            replies = [decode(self._read(connection, count, **timeout)) for count, decode in pending]
        except ResponseError as error:
            self._raise_refusal("a request", error)
        if is_asked and self._read_replication(connection, **timeout) != self._replication:
            raise NodeUnavailable(
                f"redis {self.name} may have other data than when this connection was opened, and it is closed",
                hint="the server has become a replica or a primary, or got its first replica",
            )
        if not is_asked and connection.can_read(timeout=0):
            raise UnfitAnswer("more answers than requests")
        return replies

    def _read_replication(self, connection: AbstractConnection, **timeout: float) -> bytes:
        (answer,) = self._read(connection, 1, **timeout)
        if isinstance(answer, ResponseError):
            self._raise_refusal("INFO", answer)
        return find_replication(answer)

    def _translate(self, error: BaseException, *, was_open: bool) -> FreshnessError | None:
        if isinstance(error, AuthenticationError):
            return NodeRefused(
                f"redis {self.name} refuses the login: {error}",
                hint="correct the user and the password of this node; they are read again for the next connection",
            )
        if isinstance(error, InvalidResponse) and not was_open:
            return NodeUnsuitable(
                f"redis {self.name} is no Redis: {error}", hint="correct the address in cache.nodes"
            )
        if isinstance(error, RedisTimeoutError | TimeoutError):
            return NodeTimedOut(f"redis {self.name} did not answer in time", hint=UNREACHABLE_HINT)
        if isinstance(error, UnfitAnswer | ValueError | RecursionError):  # redis-py trusts sizes and depths
            return NodeUnavailable(f"redis {self.name} gave an answer that does not fit: {error}")
        return None

    @staticmethod
    def _write(connection: AbstractConnection, commands: Sequence[Command]) -> None:
        # Redis keeps answers that nobody reads yet in its own memory, so it never stops reading the flow
        if commands:
            connection.send_packed_command(connection.pack_commands(commands))  # type: ignore[no-untyped-call]

    @staticmethod
    def _read(connection: AbstractConnection, count: int, **timeout: float) -> Answers:
        """The next answers; a refusal of the server stays in its place."""
        answers: Answers = []
        for _ in range(count):
            if isinstance(connection, _BoundedConnection):
                connection.bounded.left = ANSWER_BYTES_MAX
            try:
                answers.append(connection.read_response(**timeout))
            except ResponseError as error:
                answers.append(error)
        return answers

    def _raise_refusal(self, what: str, error: ResponseError) -> NoReturn:
        hint, kind = "see the message of the server", NodeUnavailable
        text = str(error)
        if is_out_of_memory(error):
            hint = "give the node more memory, or let it evict: maxmemory-policy allkeys-lru"
        elif isinstance(error, NoPermissionError) or any(said in text for said in _SCRIPT_REFUSED):
            hint, kind = f"give it to the user of this node: ACL SETUSER NAME {RIGHTS}", NodeRefused
        elif "read only replica" in text:
            hint = "this server is a replica: configure the primary as the node"
        elif text.startswith("WRONGTYPE"):
            hint = "another application uses the same keys: give the cache a database of its own"
        elif isinstance(error, NoScriptError):
            hint = "somebody said SCRIPT FLUSH; the scripts are loaded again with the next connection"
        elif isinstance(error, AskError | ClusterDownError | ClusterCrossSlotError):  # MovedError is an AskError
            raise NodeUnsuitable(
                f"redis {self.name} is part of a Redis cluster: {text}",
                hint="use servers of their own: the cache places keys itself",
            ) from error
        raise kind(f"redis {self.name} refused {what}: {text}", hint=hint) from error

    def _open(self) -> AbstractConnection:
        connection = self._make_connection()
        try:
            connection.connect()  # type: ignore[no-untyped-call]
            loads: list[Command] = [("SCRIPT", "LOAD", script) for script in SCRIPTS]
            self._write(connection, [*loads, self.identify])
            for digest in self._read(connection, len(SCRIPTS)):
                if isinstance(digest, ResponseError):
                    self._raise_refusal("SCRIPT LOAD", digest)
            self._replication = self._read_replication(connection)
        except BaseException:
            connection.disconnect()  # type: ignore[no-untyped-call]
            raise
        self._connection = connection
        return connection

    def _connect_by_name(self) -> AbstractConnection:
        assert self._place is not None, "a node has an address or a connection"
        (host, port), reach = self._place, self._reach
        options: dict[str, Any] = {
            "host": host,
            "port": port,
            "credential_provider": None if reach.credentials is None else _Credentials(reach.credentials),
            "socket_connect_timeout": reach.connect_timeout_seconds,
            "socket_timeout": reach.timeout_seconds,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }
        if reach.make_tls is None:
            return _PlainConnection(reach.network, **options)
        return _TlsConnection(reach.network, reach.make_tls, **options)

    def _find_socket(self, connection: AbstractConnection) -> socket.socket | None:
        found = getattr(connection, "_sock", None)  # fakeredis has another thing there
        if isinstance(found, BoundedSocket):
            found = found.connected
        return found if isinstance(found, socket.socket) else None

    def _disconnect(self, connection: AbstractConnection) -> None:
        connection.disconnect()  # type: ignore[no-untyped-call]


def _parse_info(answer: Any) -> dict[str, str]:
    if isinstance(answer, ResponseError):
        return {}
    lines = (line.partition(":") for line in answer.decode("latin-1").splitlines())
    return {name: value for name, separator, value in lines if separator}


def _pairs(answer: list[bytes]) -> dict[str, str]:
    texts = [each.decode("latin-1") for each in answer]
    return dict(zip(texts[::2], texts[1::2], strict=True))
