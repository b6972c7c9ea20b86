"""Items and scripts on a Redis server: requests to commands, answers to replies. No socket.

The item itself holds the parts that memcached has and Redis lacks: 8 bytes of version, drawn at random by the
client that stores (so that it never repeats, not even after a restart: no F8 here), one byte that says whether the
item is a stub whose win was given, then the value. Comparing and storing is one step inside the server, by scripts.

Persistence and replicas bring old data back after a restart or a failover. So a bound item (`Add`) also holds the
server's ``run_id`` and ``master_replid``, and the script that reads it compares them with the server's present ones:
a new process has another run_id, and each promotion draws another master_replid. Node records are bound, so an old
one is as good as gone, and with it all that it vouches for. None is added to other data than those on which the
connection was opened: it would vouch for what its writer has not seen. A server also draws another master_replid for
its first replica, and when it gives up its backlog; its items are then lost for nothing, and nothing worse.

It must never guess: what does not fit raises `UnfitAnswer`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from redis.exceptions import OutOfMemoryError, ResponseError

from freshness.algorithm.node import TTL_SECONDS_MAX, check_key, lifetime_seconds
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

VERSION_BYTES: Final = 8
HEADER_BYTES: Final = VERSION_BYTES + 1
PLAIN: Final = b"\x00"
LEASED: Final = b"\x01"
BOUND: Final = b"\x02"
IDENTITY_BYTES: Final = 80
"""Two numbers of 40 hexadecimal digits: run_id and master_replid."""

NO_VERSION: Final = 0
"""The version of an item that others wrote: no item of ours has it, so no compare-and-swap matches it."""

TOO_LARGE: Final = "object too large for cache"
ITEM_BYTES_MAX: Final = 1_048_576
"""A longer item is refused, as memcached does, so that both backends cache the same."""

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
"""``is_gone``: True for an item of another process, which counts as absent."""

GET_BOUND_SCRIPT: Final = (
    _IDENTIFY
    + """
local item = redis.call('GET', KEYS[1])
if not item or is_gone(item) then return false end
return {item, redis.call('PTTL', KEYS[1])}
"""
)

# Answers 1: somebody's, or the data are others than when the connection was opened, 2: done.
ADD_BOUND_SCRIPT: Final = (
    _IDENTIFY
    + """
local item = redis.call('GET', KEYS[1])
if item and not is_gone(item) or number('replication', 'master_replid') ~= ARGV[4] then return 1 end
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

_DIGESTS: Final = {script: hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest() for script in SCRIPTS}

Command: TypeAlias = tuple[bytes | str | int, ...]
Answers: TypeAlias = list[Any]
DecodeAnswers: TypeAlias = Callable[[Answers], Reply]


class UnfitAnswer(Exception):
    """An answer that no server with our scripts gives."""


class TooLarge(Exception):
    """An `Add` whose item is longer than the node takes; its argument: the bytes of the value."""


def encode(request: Request, find_data: Callable[[], bytes]) -> tuple[Sequence[Command], DecodeAnswers]:
    """The commands for a request, and the function that decodes their answers. ``find_data``: returns the
    ``master_replid`` of the connection. Raises `FormatError` for a key or TTL that no node takes, and `TooLarge` for
    an `Add` of more than `ITEM_BYTES_MAX`."""
    key = request.key
    check_key(key)
    if isinstance(request, Get):
        if request.is_bound:
            return [_script(GET_BOUND_SCRIPT, key)], _decode_item
        if request.vivify_ttl_seconds == 0:
            return [_script(GET_SCRIPT, key)], _decode_item
        ttl_ms = _ttl_ms(request.vivify_ttl_seconds)
        version = _draw_version()
        won = Item(b"", int.from_bytes(version), ttl_ms // 1000, won=True)
        return [_script(VIVIFY_SCRIPT, key, version + LEASED, ttl_ms)], partial(_decode_item, won=won)
    if isinstance(request, Delete):
        if request.version is None:
            return [("DEL", key)], _decode_deleted
        return [_script(DELETE_SCRIPT, key, _encode_version(request.version))], _decode_compared
    if isinstance(request, Append):
        limit = ITEM_BYTES_MAX - len(key)
        return [_script(APPEND_SCRIPT, key, _draw_version(), request.value, limit)], _decode_appended
    ttl_ms = _ttl_ms(request.ttl_seconds)
    is_too_large = len(key) + len(request.value) + HEADER_BYTES > ITEM_BYTES_MAX
    if isinstance(request, Add):
        if is_too_large:
            raise TooLarge(len(request.value))
        if request.is_bound:
            added = _script(ADD_BOUND_SCRIPT, key, _draw_version(), request.value, ttl_ms, find_data())
            return [added], _decode_added
        expiry: Command = ("PX", ttl_ms) if ttl_ms else ()
        return [("SET", key, _draw_version() + PLAIN + request.value, *expiry, "NX")], _decode_added
    if is_too_large:
        return [], lambda _: Refused(TOO_LARGE)
    version = _draw_version()
    stored = Stored(int.from_bytes(version))
    command = _script(CAS_SCRIPT, key, _encode_version(request.version), version, request.value, ttl_ms)
    return [command], partial(_decode_compared, done=stored)


def _script(script: str, key: bytes, *arguments: bytes | int) -> Command:
    return ("EVALSHA", _DIGESTS[script], 1, key, *arguments)


def _ttl_ms(ttl_seconds: int) -> int:
    """Redis counts milliseconds, so nothing is added (F50); the limit is memcached's, for all backends."""
    lifetime_seconds(ttl_seconds)
    return min(ttl_seconds, TTL_SECONDS_MAX) * 1000


def _draw_version() -> bytes:
    version = os.urandom(VERSION_BYTES)
    return version if any(version) else _draw_version()


def _encode_version(version: int) -> bytes:
    """The bytes to compare with the first bytes of an item; bytes that begin no item if no such version exists."""
    if 0 < version < 1 << 8 * VERSION_BYTES:
        return version.to_bytes(VERSION_BYTES)
    return b"no version"


def find_replication(answer: Any) -> bytes:
    """The ``master_replid`` in an answer to ``INFO replication``: another one after each promotion, and on a replica
    that of its primary."""
    found = re.search(rb"master_replid:([0-9a-f]{40})", answer) if isinstance(answer, bytes) else None
    if found is None:
        raise UnfitAnswer(f"INFO does not say master_replid: {answer!r:.200}")
    return found[1]


def _accept(answers: Answers) -> Any:
    """The only answer. Raises the refusal that is in its place."""
    (answer,) = answers
    if isinstance(answer, ResponseError):
        raise answer
    return answer


def _decode_item(answers: Answers, *, won: Item | None = None) -> Reply:
    if won is not None and is_out_of_memory(answers[0]):
        return MISSING  # it is absent, else nothing would have been written, and stays so
    answer = _accept(answers)
    if answer is None and won is None:
        return MISSING
    if answer == 1 and won is not None:
        return won
    if not isinstance(answer, list) or len(answer) != 2 or [*map(type, answer)] != [bytes, int]:
        raise UnfitAnswer(f"expected an item, got {answer!r:.200}")
    raw, ttl_ms = answer
    ttl_seconds = -(-ttl_ms // 1000) if ttl_ms >= 0 else -1
    version, flag = int.from_bytes(raw[:VERSION_BYTES]), raw[VERSION_BYTES:HEADER_BYTES]
    if version == NO_VERSION or flag not in (PLAIN, LEASED, BOUND):
        return Item(raw, NO_VERSION, ttl_seconds)
    if flag == BOUND:
        return Item(raw[HEADER_BYTES + IDENTITY_BYTES :], version, ttl_seconds)
    return Item(raw[HEADER_BYTES:], version, ttl_seconds, lease=flag == LEASED)


def _decode_added(answers: Answers) -> Reply:
    answer = _accept(answers)
    return _choose(answer, {b"OK": STORED, None: CONFLICT, 2: STORED, 1: CONFLICT})


def _decode_appended(answers: Answers) -> Reply:
    if is_out_of_memory(answers[0]):
        return CONFLICT
    return _choose(_accept(answers), {0: CONFLICT, 2: STORED})


def _decode_deleted(answers: Answers) -> Reply:
    return _choose(_accept(answers), {0: DONE, 1: DONE})


def _decode_compared(answers: Answers, *, done: Stored | Outcome = DONE) -> Reply:
    (answer,) = answers
    if isinstance(done, Stored) and is_out_of_memory(answer):
        return Refused(str(answer))
    return _choose(_accept(answers), {0: MISSING, 1: CONFLICT, 2: done})


def is_out_of_memory(answer: Any) -> bool:
    """Whether it is a refusal for lack of memory. Before Redis 7 an error of the script quotes it."""
    return isinstance(answer, OutOfMemoryError) or (isinstance(answer, ResponseError) and "-OOM " in str(answer))


def _choose(answer: Any, replies: Mapping[Any, Reply]) -> Reply:
    if isinstance(answer, list) or answer not in replies:
        raise UnfitAnswer(f"expected one of {list(replies)}, got {answer!r:.200}")
    return replies[answer]
