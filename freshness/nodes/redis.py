"""A Redis server as a cache node, for those who run Redis and not memcached.

The item itself holds the parts that memcached has and Redis lacks: 8 bytes of version, drawn at random by the
client that stores (so that it never repeats, not even after a restart: no F8 here), one byte that says whether the
item is a stub whose win was given, then the value. Comparing and storing is one step inside the server, by scripts. A
node must have no persistence and no replicas: what they bring back after a restart or a failover is the old data
under the old life, without the last invalidations. Must never turn a failure into a reply (F11); redis-py's own
retries are off. Called by the drivers, one `RedisNode` per thread and server.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias

from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, SSLConnection
from redis.exceptions import (
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from freshness.algorithm.node import TTL_SECONDS_MAX, check_key, lifetime_seconds
from freshness.algorithm.request import (
    CONFLICT,
    DONE,
    MISSING,
    STORED,
    Add,
    Delete,
    Get,
    InspectStorage,
    Item,
    Outcome,
    Refused,
    Reply,
    Request,
    StorageReport,
    Stored,
)
from freshness.errors import ConfigError, NodeUnavailable, NodeUnsuitable

VERSION_BYTES: Final = 8
HEADER_BYTES: Final = VERSION_BYTES + 1
PLAIN: Final = b"\x00"
LEASED: Final = b"\x01"

NO_VERSION: Final = 0
"""The version of an item that others wrote: no item of ours has it, so no compare-and-swap matches it."""

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

# Both answer 0: absent, 1: another version, 2: done.
CAS_SCRIPT: Final = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if redis.call('GETRANGE', KEYS[1], 0, 7) ~= ARGV[1] then return 1 end
if ARGV[3] == '0' then redis.call('SET', KEYS[1], ARGV[2])
else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return 2
"""

DELETE_SCRIPT: Final = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if redis.call('GETRANGE', KEYS[1], 0, 7) ~= ARGV[1] then return 1 end
redis.call('DEL', KEYS[1])
return 2
"""

SCRIPTS: Final = (GET_SCRIPT, VIVIFY_SCRIPT, CAS_SCRIPT, DELETE_SCRIPT)

PERSISTENCE: Final = (("CONFIG", "GET", "save"), ("CONFIG", "GET", "appendonly"), ("INFO", "replication"))
INSPECTION: Final = (
    *PERSISTENCE,
    ("CONFIG", "GET", "maxmemory"),
    ("CONFIG", "GET", "maxmemory-policy"),
    ("INFO", "server"),
    ("INFO", "stats"),
    ("INFO", "errorstats"),
    ("INFO", "commandstats"),
)

Command: TypeAlias = tuple[bytes | str | int, ...]
Answers: TypeAlias = list[Any]
DecodeAnswers: TypeAlias = Callable[[Answers], Reply]


class RedisNode:
    """A connection to one Redis server; see `freshness.algorithm.node.CacheNode`.

    ``name``: ``host:port``. ``tls_options``: keyword arguments for redis-py's ``SSLConnection``; None: no
    TLS. ``item_bytes_max``: what is longer is refused, as memcached does, so that both backends cache the
    same. ``make_connection``: replaces connecting by name, e.g. by fakeredis.
    """

    def __init__(
        self,
        name: str,
        *,
        connect_timeout_seconds: float = 1.0,
        timeout_seconds: float = 1.0,
        database: int = 0,
        username: str | None = None,
        password: str | None = None,
        tls_options: Mapping[str, Any] | None = None,
        item_bytes_max: int = 1_048_576,
        make_connection: Callable[[], AbstractConnection] | None = None,
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
                "username": username,
                "password": password,
                "socket_connect_timeout": connect_timeout_seconds,
                "socket_timeout": timeout_seconds,
                "retry": Retry(NoBackoff(), 0),
                "protocol": 2,
            }
            if tls_options is None:
                return Connection(**options)  # type: ignore[no-untyped-call]
            return SSLConnection(**options, **tls_options)

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

    def receive(self) -> list[Reply]:
        pending, connection = self._pending, self._connection
        assert pending is not None, "receive without send"
        assert connection is not None
        try:
            replies = [decode(self._read(connection, count)) for count, decode in pending]
        except BaseException as error:
            self._fail(error)
            raise
        self._pending = None
        return replies

    def perform(self, requests: Sequence[Request]) -> list[Reply]:
        self.send(requests)
        return self.receive()

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
        if isinstance(error, RedisTimeoutError | TimeoutError):
            raise NodeUnavailable(
                f"redis {self.name} did not answer in time", hint=UNREACHABLE_HINT
            ) from error
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
            self._write(connection, [*loads, *PERSISTENCE])
            for digest in self._read(connection, len(SCRIPTS)):
                if isinstance(digest, ResponseError):
                    self._raise_refusal("SCRIPT LOAD", digest)
            self._require_volatile(self._read(connection, len(PERSISTENCE)))
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
    def _read(connection: AbstractConnection, count: int) -> Answers:
        """The next answers; a refusal of the server stays in its place."""
        answers: Answers = []
        for _ in range(count):
            try:
                answers.append(connection.read_response())
            except ResponseError as error:
                answers.append(error)
        return answers

    def _raise_refusal(self, what: str, error: ResponseError) -> NoReturn:
        hint = "see the message of the server"
        text = str(error)
        if _is_out_of_memory(error):
            hint = "give the node more memory, or lower tombstone_ttl_seconds"
        elif isinstance(error, NoPermissionError):
            hint = "give the user of this node the permission"
        elif text.startswith("WRONGTYPE"):
            hint = "another application uses the same keys: give the cache a database of its own"
        elif isinstance(error, NoScriptError):
            hint = "somebody said SCRIPT FLUSH; the scripts are loaded again with the next connection"
        raise NodeUnavailable(f"redis {self.name} refused {what}: {text}", hint=hint) from error

    def _require_volatile(self, answers: Answers) -> None:
        """Raise `NodeUnsuitable` for a server that could bring old data back with its life."""
        save, appendonly, replication = answers
        for setting, off in ((save, b""), (appendonly, b"no")):
            if isinstance(setting, list) and len(setting) == 2 and setting[1] != off:
                raise NodeUnsuitable(
                    f"redis {self.name} is persistent: {setting[0].decode()} is {setting[1].decode()!r}",
                    hint="a restart would bring back old data; set save '' and appendonly no",
                )
        facts = _parse_info(replication)
        if facts.get("role", "master") != "master" or facts.get("connected_slaves", "0") != "0":
            raise NodeUnsuitable(
                f"redis {self.name} is replicated: role {facts.get('role')}, "
                f"{facts.get('connected_slaves')} replicas",
                hint="a failover would bring back old data without the last invalidations; use single servers",
            )

    # -- requests --------------------------------------------------------------------------------------

    def _encode(self, request: Request) -> tuple[Sequence[Command], DecodeAnswers]:
        """The commands for a request, and what makes a reply of their answers."""
        if isinstance(request, InspectStorage):
            lifetime_seconds(request.tombstone_ttl_seconds)
            return INSPECTION, self._decode_report
        key = request.key
        check_key(key)
        if isinstance(request, Get):
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
        ttl_ms = _ttl_ms(request.ttl_seconds)
        is_too_large = len(key) + len(request.value) + HEADER_BYTES > self._item_bytes_max
        if isinstance(request, Add):
            if is_too_large:
                raise NodeUnavailable(
                    f"redis {self.name} was not given {len(request.value)} bytes: {TOO_LARGE}",
                    hint=f"items have at most {self._item_bytes_max} bytes",
                )
            expiry: Command = ("PX", ttl_ms) if ttl_ms else ()
            return [("SET", key, _draw_version() + PLAIN + request.value, *expiry, "NX")], self._decode_added
        if is_too_large:
            return [], lambda _: Refused(TOO_LARGE)
        version = _draw_version()
        stored = Stored(int.from_bytes(version))
        command = _script(
            CAS_SCRIPT, key, _encode_version(request.version), version + PLAIN + request.value, ttl_ms
        )
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
        ttl_seconds = ttl_ms // 1000 if ttl_ms >= 0 else -1
        version, flag = int.from_bytes(raw[:VERSION_BYTES]), raw[VERSION_BYTES:HEADER_BYTES]
        if version == NO_VERSION or flag not in (PLAIN, LEASED):
            return Item(raw, NO_VERSION, ttl_seconds)
        return Item(raw[HEADER_BYTES:], version, ttl_seconds, lease=flag == LEASED)

    def _decode_added(self, answers: Answers) -> Reply:
        answer = self._accept(answers)
        return _choose(answer, {b"OK": STORED, None: CONFLICT})

    def _decode_deleted(self, answers: Answers) -> Reply:
        return _choose(self._accept(answers), {0: DONE, 1: DONE})

    def _decode_compared(self, answers: Answers, *, done: Stored | Outcome = DONE) -> Reply:
        (answer,) = answers
        if isinstance(done, Stored) and _is_out_of_memory(answer):
            return Refused(str(answer))
        return _choose(self._accept(answers), {0: MISSING, 1: CONFLICT, 2: done})

    def _decode_report(self, answers: Answers) -> StorageReport:
        """A node keeps tombstones if nothing is ever evicted; then a full one refuses, which is counted."""
        self._require_volatile(answers[:3])
        limit, policy, server, stats, error_stats, command_stats = answers[3:]
        name = f"redis {_parse_info(server).get('redis_version', 'of unknown version')}"
        losses = _sum_losses(_parse_info(stats), _parse_info(error_stats), _parse_info(command_stats))
        if losses is None:
            return StorageReport(
                False, "INFO does not count what is evicted: fills wait for the floor", 0, name
            )
        settings = [
            setting[1] for setting in (limit, policy) if isinstance(setting, list) and len(setting) == 2
        ]
        if len(settings) != 2 or any(isinstance(setting, ResponseError) for setting in answers[:2]):
            reason = "it does not show its configuration: allow CONFIG GET, else fills wait for the floor"
            return StorageReport(False, reason, losses, name)
        if settings[0] != b"0" and settings[1] != b"noeviction":
            reason = f"it evicts ({settings[1].decode()}): set maxmemory-policy noeviction, or maxmemory 0"
            return StorageReport(False, reason, losses, name)
        return StorageReport(True, "", losses, name)


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


def _sum_losses(
    stats: Mapping[str, str], error_stats: Mapping[str, str], command_stats: Mapping[str, str]
) -> int | None:
    """The count of items evicted, refused for memory, or flushed; None where the server does not say.

    Refusals are counted since Redis 6.2; on older servers only those who were refused know.
    """
    counters = [stats.get("evicted_keys", "unknown")]
    counters.append(error_stats.get("errorstat_OOM", "count=0").removeprefix("count="))
    for command in ("flushall", "flushdb"):
        counters.append(
            command_stats.get(f"cmdstat_{command}", "calls=0").split(",")[0].removeprefix("calls=")
        )
    return sum(map(int, counters)) if all(counter.isdecimal() for counter in counters) else None


def _parse_info(answer: Any) -> dict[str, str]:
    """The lines of INFO; empty where it is not allowed."""
    if not isinstance(answer, bytes):
        return {}
    lines = (line.partition(":") for line in answer.decode("latin-1").split("\r\n"))
    return {name: value for name, colon, value in lines if colon}
