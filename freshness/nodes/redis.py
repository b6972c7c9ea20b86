"""A Redis server as a cache node, for those who run Redis and not memcached.

The item itself holds the parts that memcached has and Redis lacks: 8 bytes of version, drawn at random by the
client that stores (so that it never repeats, not even after a restart: no F8 here), one byte that says whether the
item is a stub whose win was given, then the value. Comparing and storing is one step inside the server, by scripts.

Persistence and replicas bring old data back after a restart or a failover. So a bound item (`Add`) also holds the
server's ``run_id`` and ``master_replid``, and the script that reads it compares them with the server's present ones:
a new process has another run_id, and each promotion draws another master_replid. Node records are bound, so an old
one is as good as gone, and with it all that it vouches for. A server also draws another master_replid for its first
replica, and when it gives up its backlog; its items are then lost for nothing, and nothing worse.

Must never turn a failure into a reply (F11); redis-py's own retries are off. Called by the drivers, one `RedisNode`
per thread and server.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias

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
    OutOfMemoryError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from freshness.algorithm.node import LATE_SECONDS, TTL_SECONDS_MAX, check_key, lifetime_seconds
from freshness.algorithm.request import (
    CONFLICT,
    DONE,
    MISSING,
    STORED,
    Add,
    Append,
    Delete,
    Get,
    Item,
    Outcome,
    Refused,
    Reply,
    Request,
    Stored,
)
from freshness.errors import ConfigError, NodeRefused, NodeTimedOut, NodeUnavailable, NodeUnsuitable
from freshness.login import TLS_HINT, PasswordTimedOut, describe_tls_failure
from freshness.network import BLOCKING, Network

VERSION_BYTES: Final = 8
HEADER_BYTES: Final = VERSION_BYTES + 1
PLAIN: Final = b"\x00"
LEASED: Final = b"\x01"
BOUND: Final = b"\x02"
IDENTITY_BYTES: Final = 80
"""Two numbers of 40 hexadecimal digits: run_id and master_replid."""

NO_VERSION: Final = 0
"""The version of an item that others wrote: no item of ours has it, so no compare-and-swap matches it."""

KEYS_PER_SCAN: Final = 1_000
"""Places of its table that the server looks at for one answer: a fraction of a millisecond, in which it serves
nobody else."""

TOO_LARGE: Final = "object too large for cache"
UNREACHABLE_HINT: Final = "see that Redis runs there and is reachable; nothing was concluded from the silence"

GET_SCRIPT: Final = """
local item = redis.call('GET', KEYS[1])
if not item then return false end
return {item, redis.call('PTTL', KEYS[1])}
"""

VIVIFY_SCRIPT: Final = """
local item = redis.call('GET', KEYS[1])
if item then return {item, redis.call('PTTL', KEYS[1])} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

RIGHTS: Final = "+@scripting +@string +del +exists +pttl +scan +info +config|get +time"
"""All that a user needs, as Redis spells it: those of the scripts' commands too, and the last five for those who look
at the node."""

_SCRIPT_REFUSED: Final = ("user executing the script", "ACL failure in script")
"""Redis and Valkey where a user may run a script, and not a command of it."""

_IDENTIFY: Final = """
local function number(section, name)
  local found = string.match(redis.call('INFO', section), name .. ':(' .. string.rep('%x', 40) .. ')')
  return assert(found, 'INFO does not say ' .. name)
end
local function identity() return number('server', 'run_id') .. number('replication', 'master_replid') end
local function is_gone(item)
  return string.sub(item, 9, 9) == '\\2' and string.sub(item, 10, 89) ~= identity()
end
"""
"""``is_gone``: whether an item is bound to another process, and so counts as absent."""

GET_BOUND_SCRIPT: Final = (
    _IDENTIFY
    + """
local item = redis.call('GET', KEYS[1])
if not item or is_gone(item) then return false end
return {item, redis.call('PTTL', KEYS[1])}
"""
)

# Answers 1: somebody's, 2: done.
ADD_BOUND_SCRIPT: Final = (
    _IDENTIFY
    + """
local item = redis.call('GET', KEYS[1])
if item and not is_gone(item) then return 1 end
local new = ARGV[1] .. '\\2' .. identity() .. ARGV[2]
if ARGV[3] == '0' then redis.call('SET', KEYS[1], new)
else redis.call('SET', KEYS[1], new, 'PX', ARGV[3]) end
return 2
"""
)

# Answers 0: absent, 1: another version, 2: done. A bound item stays bound to the same process.
CAS_SCRIPT: Final = (
    _IDENTIFY
    + """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local held = redis.call('GETRANGE', KEYS[1], 0, 88)
if is_gone(held) then return 0 end
if string.sub(held, 1, 8) ~= ARGV[1] then return 1 end
local bound = '\\0'
if string.sub(held, 9, 9) == '\\2' then bound = string.sub(held, 9) end
local new = ARGV[2] .. bound .. ARGV[3]
if ARGV[4] == '0' then redis.call('SET', KEYS[1], new)
else redis.call('SET', KEYS[1], new, 'PX', ARGV[4]) end
return 2
"""
)

DELETE_SCRIPT: Final = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if redis.call('GETRANGE', KEYS[1], 0, 7) ~= ARGV[1] then return 1 end
redis.call('DEL', KEYS[1])
return 2
"""

# Answers 0: absent, too long or foreign, 2: done. A stub is nobody's any more.
APPEND_SCRIPT: Final = (
    _IDENTIFY
    + """
local held = redis.call('GETRANGE', KEYS[1], 0, 88)
local flag = string.byte(held, 9)
if not flag or flag > 2 or is_gone(held) or string.sub(held, 1, 8) == string.rep('\\0', 8) then return 0 end
if redis.call('STRLEN', KEYS[1]) + #ARGV[2] > tonumber(ARGV[3]) then return 0 end
if flag == 1 then flag = 0 end
redis.call('SETRANGE', KEYS[1], 0, ARGV[1] .. string.char(flag))
redis.call('APPEND', KEYS[1], ARGV[2])
return 2
"""
)

SCRIPTS: Final = (
    GET_SCRIPT,
    VIVIFY_SCRIPT,
    CAS_SCRIPT,
    DELETE_SCRIPT,
    APPEND_SCRIPT,
    GET_BOUND_SCRIPT,
    ADD_BOUND_SCRIPT,
)

Command: TypeAlias = tuple[bytes | str | int, ...]
Answers: TypeAlias = list[Any]
DecodeAnswers: TypeAlias = Callable[[Answers], Reply]


class _PlainConnection(Connection):
    """redis-py's connection, on a socket of a `Network`."""

    def __init__(self, network: Network, **options: Any) -> None:
        self._network = network
        super().__init__(**options)  # type: ignore[no-untyped-call]

    def _connect(self) -> socket.socket:
        return self._network.connect(self.host, self.port, self.socket_connect_timeout, self.socket_timeout)


class _TlsConnection(SSLConnection, _PlainConnection):
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


class RedisNode:
    """A connection to one Redis server; see `freshness.algorithm.node.CacheNode`.

    ``name``: ``host:port``. ``make_tls`` and ``credentials``, user (empty for the default one) and password, are
    asked at each connection; a `ConfigError` of theirs is a node that is unavailable. ``item_bytes_max``: what is
    longer is refused, as memcached does, so that both backends cache the same. ``make_connection``: replaces
    connecting by name, e.g. by fakeredis.
    """

    def __init__(
        self,
        name: str,
        *,
        connect_timeout_seconds: float = 1.0,
        timeout_seconds: float = 1.0,
        database: int = 0,
        make_tls: Callable[[], ssl.SSLContext] | None = None,
        credentials: Callable[[], tuple[str, str]] | None = None,
        item_bytes_max: int = 1_048_576,
        make_connection: Callable[[], AbstractConnection] | None = None,
        network: Network = BLOCKING,
    ) -> None:
        host, _, port = name.rpartition(":")
        if make_connection is None and not (host and port.isdecimal()):
            raise ConfigError(f"cache node {name!r} is not an address", hint="write host:port")
        self.name = name
        self._item_bytes_max = item_bytes_max
        self._connection: AbstractConnection | None = None
        self._pending: list[tuple[int, DecodeAnswers]] | None = None

        def connect_by_name() -> AbstractConnection:
            options: dict[str, Any] = {
                "host": host.strip("[]"),
                "port": int(port),
                "db": database,
                "credential_provider": None if credentials is None else _Credentials(credentials),
                "socket_connect_timeout": connect_timeout_seconds,
                "socket_timeout": timeout_seconds,
                "retry": Retry(NoBackoff(), 0),
                "protocol": 2,
            }
            if make_tls is None:
                return _PlainConnection(network, **options)
            return _TlsConnection(network, make_tls, **options)

        self._make_connection = make_connection or connect_by_name

    # -- CacheNode -------------------------------------------------------------------------------------

    def send(self, requests: Sequence[Request]) -> None:
        if self._pending is not None:
            self.close()  # answers that nobody received must not be taken for the ones to come
        commands: list[Command] = []
        pending: list[tuple[int, DecodeAnswers]] = []
        for request in requests:
            own_commands, decode = self._encode(request)
            commands += own_commands
            pending.append((len(own_commands), decode))
        try:
            connection = self._connection
            if connection is None:
                connection = self._open()
            self._pending = pending
            self._write(connection, commands)
        except BaseException as error:
            self._fail(error)
            raise

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def connect(self) -> None:
        if self._connection is not None:
            return
        try:
            self._open()
        except BaseException as error:
            self._fail(error)
            raise

    def receive(self, *, is_late: bool = False) -> list[Reply]:
        pending, connection = self._pending, self._connection
        assert pending is not None, "receive without send"
        assert connection is not None
        timeout: dict[str, float] = {"timeout": LATE_SECONDS} if is_late else {}
        try:
            replies = [decode(self._read(connection, count, **timeout)) for count, decode in pending]
        except BaseException as error:
            self._fail(error)
            raise
        self._pending = None
        return replies

    def perform(self, requests: Sequence[Request]) -> list[Reply]:
        self.send(requests)
        return self.receive()

    def find(self, key: bytes) -> bytes | None:
        (reply,) = self.perform((Get(key),))
        return reply.value if isinstance(reply, Item) else None

    def describe(self) -> dict[str, dict[str, str]]:
        """See `DescribedNode`: ``INFO``, ``CONFIG`` (GET *) and ``TIME`` (seconds)."""
        assert self._pending is None, "describe within a flow"
        try:
            connection = self._connection or self._open()
            self._write(connection, [("INFO",), ("CONFIG", "GET", "*"), ("TIME",)])
            info, config, now = self._read(connection, 3)
        except BaseException as error:
            self._fail(error)
            raise
        return {
            "INFO": _parse_info(info),
            "CONFIG": {} if isinstance(config, ResponseError) else _pairs(config),
            "TIME": {} if isinstance(now, ResponseError) else {"seconds": now[0].decode()},
        }

    def scan(self, prefix: bytes) -> Iterator[bytes]:
        """The keys that begin so, by SCAN: one that is there all the while comes, perhaps twice. Fails as `send`."""
        pattern, cursor = re.sub(rb"[*?\[\]\\^]", rb"\\\g<0>", prefix) + b"*", b"0"
        while True:
            assert self._pending is None, "scan within a flow"
            try:
                connection = self._connection or self._open()
                self._write(connection, [("SCAN", cursor, "MATCH", pattern, "COUNT", KEYS_PER_SCAN)])
                (answer,) = self._read(connection, 1)
            except BaseException as error:
                self._fail(error)
                raise
            if isinstance(answer, ResponseError):
                self._raise_refusal("SCAN", answer)
            cursor, keys = answer
            yield from keys
            if cursor == b"0":
                return

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._pending = None
        if connection is not None:
            connection.disconnect()  # type: ignore[no-untyped-call]

    # -- the connection --------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """Close, and raise our own error for the known kinds of failure; return for all others."""
        was_open = self._connection is not None
        self.close()
        if isinstance(error, ConfigError):
            kind = NodeTimedOut if isinstance(error, PasswordTimedOut) else NodeUnavailable
            raise kind(f"redis {self.name}: {error.message}", hint=error.hint) from error
        failure = describe_tls_failure(error) or describe_tls_failure(error.__context__)
        if failure is not None:
            raise NodeUnavailable(f"redis {self.name}: {failure}", hint=TLS_HINT) from error
        if isinstance(error, AuthenticationError):
            raise NodeRefused(
                f"redis {self.name} refuses the login: {error}",
                hint="correct the user and the password of this node; they are read again for the next connection",
            ) from error
        if isinstance(error, InvalidResponse) and not was_open:
            raise NodeUnsuitable(
                f"redis {self.name} is no Redis: {error}", hint="correct the address in cache.nodes"
            ) from error
        if isinstance(error, RedisTimeoutError | TimeoutError):
            raise NodeTimedOut(f"redis {self.name} did not answer in time", hint=UNREACHABLE_HINT) from error
        if isinstance(error, RedisError | OSError):
            what = "broke the connection" if was_open else "cannot be reached"
            raise NodeUnavailable(f"redis {self.name} {what}: {error}", hint=UNREACHABLE_HINT) from error
        if isinstance(error, _UnfitAnswer):
            raise NodeUnavailable(f"redis {self.name} gave an answer that does not fit: {error}") from error

    def _open(self) -> AbstractConnection:
        connection = self._make_connection()
        try:
            connection.connect()  # type: ignore[no-untyped-call]
            loads: list[Command] = [("SCRIPT", "LOAD", script) for script in SCRIPTS]
            self._write(connection, loads)
            for digest in self._read(connection, len(SCRIPTS)):
                if isinstance(digest, ResponseError):
                    self._raise_refusal("SCRIPT LOAD", digest)
        except BaseException:
            connection.disconnect()  # type: ignore[no-untyped-call]
            raise
        self._connection = connection
        return connection

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
            try:
                answers.append(connection.read_response(**timeout))
            except ResponseError as error:
                answers.append(error)
        return answers

    def _raise_refusal(self, what: str, error: ResponseError) -> NoReturn:
        hint, kind = "see the message of the server", NodeUnavailable
        text = str(error)
        if _is_out_of_memory(error):
            hint = "give the node more memory, or let it evict: maxmemory-policy allkeys-lru"
        elif isinstance(error, NoPermissionError) or any(said in text for said in _SCRIPT_REFUSED):
            hint, kind = f"give it to the user of this node: ACL SETUSER NAME {RIGHTS}", NodeRefused
        elif "read only replica" in text:
            hint = "this server is a replica: configure the primary as the node"
        elif text.startswith("WRONGTYPE"):
            hint = "another application uses the same keys: give the cache a database of its own"
        elif isinstance(error, NoScriptError):
            hint = "somebody said SCRIPT FLUSH; the scripts are loaded again with the next connection"
        elif isinstance(
            error, AskError | ClusterDownError | ClusterCrossSlotError
        ):  # MovedError is an AskError
            raise NodeUnsuitable(
                f"redis {self.name} is part of a Redis cluster: {text}",
                hint="use servers of their own: the cache places keys itself",
            ) from error
        raise kind(f"redis {self.name} refused {what}: {text}", hint=hint) from error

    # -- requests --------------------------------------------------------------------------------------

    def _encode(self, request: Request) -> tuple[Sequence[Command], DecodeAnswers]:
        """The commands for a request, and what makes a reply of their answers."""
        key = request.key
        check_key(key)
        if isinstance(request, Get):
            if request.is_bound:
                return [_script(GET_BOUND_SCRIPT, key)], self._decode_item
            if request.vivify_ttl_seconds == 0:
                return [_script(GET_SCRIPT, key)], self._decode_item
            ttl_ms = _ttl_ms(request.vivify_ttl_seconds)
            version = _draw_version()
            won = Item(b"", int.from_bytes(version), ttl_ms // 1000, won=True)
            return [_script(VIVIFY_SCRIPT, key, version + LEASED, ttl_ms)], partial(
                self._decode_item, won=won
            )
        if isinstance(request, Delete):
            if request.version is None:
                return [("DEL", key)], self._decode_deleted
            return [_script(DELETE_SCRIPT, key, _encode_version(request.version))], self._decode_compared
        if isinstance(request, Append):
            limit = self._item_bytes_max - len(key)
            return [_script(APPEND_SCRIPT, key, _draw_version(), request.value, limit)], self._decode_appended
        ttl_ms = _ttl_ms(request.ttl_seconds)
        is_too_large = len(key) + len(request.value) + HEADER_BYTES > self._item_bytes_max
        if isinstance(request, Add):
            if is_too_large:
                raise NodeUnavailable(
                    f"redis {self.name} was not given {len(request.value)} bytes: {TOO_LARGE}",
                    hint=f"items have at most {self._item_bytes_max} bytes",
                )
            if request.is_bound:
                added = _script(ADD_BOUND_SCRIPT, key, _draw_version(), request.value, ttl_ms)
                return [added], self._decode_added
            expiry: Command = ("PX", ttl_ms) if ttl_ms else ()
            return [("SET", key, _draw_version() + PLAIN + request.value, *expiry, "NX")], self._decode_added
        if is_too_large:
            return [], lambda _: Refused(TOO_LARGE)
        version = _draw_version()
        stored = Stored(int.from_bytes(version))
        command = _script(CAS_SCRIPT, key, _encode_version(request.version), version, request.value, ttl_ms)
        return [command], partial(self._decode_compared, done=stored)

    # -- answers ---------------------------------------------------------------------------------------

    def _accept(self, answers: Answers) -> Any:
        (answer,) = answers
        if isinstance(answer, ResponseError):
            self._raise_refusal("a request", answer)
        return answer

    def _decode_item(self, answers: Answers, *, won: Item | None = None) -> Reply:
        if won is not None and _is_out_of_memory(answers[0]):
            return MISSING  # it is absent, else nothing would have been written, and stays so
        answer = self._accept(answers)
        if answer is None and won is None:
            return MISSING
        if answer == 1 and won is not None:
            return won
        if not isinstance(answer, list) or len(answer) != 2 or not isinstance(answer[0], bytes):
            raise _UnfitAnswer(f"expected an item, got {answer!r:.200}")
        raw, ttl_ms = answer
        ttl_seconds = -(-ttl_ms // 1000) if ttl_ms >= 0 else -1
        version, flag = int.from_bytes(raw[:VERSION_BYTES]), raw[VERSION_BYTES:HEADER_BYTES]
        if version == NO_VERSION or flag not in (PLAIN, LEASED, BOUND):
            return Item(raw, NO_VERSION, ttl_seconds)
        if flag == BOUND:
            return Item(raw[HEADER_BYTES + IDENTITY_BYTES :], version, ttl_seconds)
        return Item(raw[HEADER_BYTES:], version, ttl_seconds, lease=flag == LEASED)

    def _decode_added(self, answers: Answers) -> Reply:
        answer = self._accept(answers)
        return _choose(answer, {b"OK": STORED, None: CONFLICT, 2: STORED, 1: CONFLICT})

    def _decode_appended(self, answers: Answers) -> Reply:
        if _is_out_of_memory(answers[0]):
            return CONFLICT
        return _choose(self._accept(answers), {0: CONFLICT, 2: STORED})

    def _decode_deleted(self, answers: Answers) -> Reply:
        return _choose(self._accept(answers), {0: DONE, 1: DONE})

    def _decode_compared(self, answers: Answers, *, done: Stored | Outcome = DONE) -> Reply:
        (answer,) = answers
        if isinstance(done, Stored) and _is_out_of_memory(answer):
            return Refused(str(answer))
        return _choose(self._accept(answers), {0: MISSING, 1: CONFLICT, 2: done})


class _UnfitAnswer(Exception):
    """An answer that no server with our scripts gives."""


def _is_out_of_memory(answer: Any) -> bool:
    # Before Redis 7 the refusal inside a script is an error of the script that quotes it
    return isinstance(answer, OutOfMemoryError) or (
        isinstance(answer, ResponseError) and "-OOM " in str(answer)
    )


def _choose(answer: Any, replies: Mapping[Any, Reply]) -> Reply:
    if answer not in replies:
        raise _UnfitAnswer(f"expected one of {list(replies)}, got {answer!r:.200}")
    return replies[answer]


def _parse_info(answer: Any) -> dict[str, str]:
    if isinstance(answer, ResponseError):
        return {}
    lines = (line.partition(":") for line in answer.decode("latin-1").splitlines())
    return {name: value for name, separator, value in lines if separator}


def _pairs(answer: list[bytes]) -> dict[str, str]:
    texts = [each.decode("latin-1") for each in answer]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _script(script: str, key: bytes, *arguments: bytes | int) -> Command:
    return ("EVALSHA", _digest(script), 1, key, *arguments)


def _digest(script: str) -> str:
    return _DIGESTS[script]


_DIGESTS: Final = {
    script: hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest() for script in SCRIPTS
}


def _ttl_ms(ttl_seconds: int) -> int:
    """Redis counts milliseconds, so nothing is added (F50); the limit is memcached's, for all backends."""
    lifetime_seconds(ttl_seconds)
    return min(ttl_seconds, TTL_SECONDS_MAX) * 1000


def _draw_version() -> bytes:
    version = os.urandom(VERSION_BYTES)
    return version if any(version) else _draw_version()


def _encode_version(version: int) -> bytes:
    """The bytes to compare with the first bytes of an item; bytes that begin no item, if there is no such
    version."""
    if 0 < version < 1 << 8 * VERSION_BYTES:
        return version.to_bytes(VERSION_BYTES)
    return b"no version"
