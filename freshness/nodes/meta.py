"""memcached's meta protocol: requests to bytes, bytes to replies. No socket, no client library.

Theory of operation. memcached answers in the order of the requests, so a reply line belongs to a request by
its position, except that a quiet request answers nothing when it did the usual thing. Measured on 1.6.18:

* a quiet ``ms … ME q O5`` answers nothing when it stored, ``NS O5`` when the key exists, and an error line,
  without its opaque, when it was refused;
* a quiet ``ms … MA q k`` answers nothing when it appended, ``NS k<key>`` when the key is absent;
* a quiet ``md`` still answers ``NF``, so an unconditional delete is the classic ``delete k noreply``, which
  answers nothing at all;
* ``mn`` answers ``MN``.

So every run of quiet requests that contains an add, or ends the flow, is fenced by ``mn``: answers before its ``MN``
belong to the run, later ones do not. Hence an error line is known to be a `Cas`'s own (`Refused`), or it belongs to a
quiet run, to an unknown request: then the flow fails, or, if the run is a `Strikes`, all its appends count as
refused. It must never guess: what does not fit raises `ProtocolError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

from freshness.algorithm.node import KEY_BYTES_MAX, check_key, is_key, lifetime_seconds
from freshness.algorithm.request import (
    CONFLICT,
    DONE,
    MISSING,
    STORED,
    Add,
    Append,
    Cas,
    Delete,
    Finds,
    Get,
    Item,
    Refused,
    Reply,
    Request,
    Stored,
    Strikes,
)

LINE_BYTES_MAX: Final = 8192
"""No reply line of memcached is longer; bytes without a line end beyond this are not the protocol."""

VALUE_BYTES_MAX: Final = 1 << 30
"""memcached's own upper limit for -I."""

VERSION_LIMIT: Final = 1 << 64

FENCE: Final = b"mn\r\n"

REFUSALS: Final = (b"SERVER_ERROR object too large for cache", b"SERVER_ERROR out of memory storing object")


class ProtocolError(Exception):
    """The bytes are not what this request can be answered with. Translated by the caller."""


class ReplyKind(IntEnum):
    """The replies that are awaited from the node, in order."""

    ITEM = 0
    FENCE = 1
    CAS = 2
    DELETED = 3
    PRESENCE = 4
    APPENDED = 5


@dataclass(slots=True)
class Plan:
    """How the answer to a flow is to be read. ``replies``: one per request; already right for the quiet ones, of
    which usually nothing is heard. ``awaited``: answers of the node, with the index of the request; for a fence the
    index after its run. None if every request is a `Get`, and ``replies`` is empty then."""

    requests: Sequence[Request]
    replies: list[Reply]
    awaited: list[tuple[ReplyKind, int]] | None
    versions_from: int


def encode_flow(requests: Sequence[Request], connection: int = 0) -> tuple[list[bytes], Plan]:
    """The commands of a flow and the plan for its answer. Raises `FormatError` for a key or TTL nobody could
    take.

    ``connection`` numbers the connection. It is the upper part of every version, so that a version read on an earlier
    one, perhaps from a process that has been restarted since and counts from the beginning again, fits no item (F8).
    """
    versions_from = connection * VERSION_LIMIT
    # By type: it is a sequence in the sense of collections.abc, and to ask that costs more than to encode a Get
    if type(requests) is Strikes:
        count = len(requests)
        return ([*encode_strikes(requests, 0, count), FENCE] if count else []), plan_strikes(requests)
    if type(requests) is Finds:
        return encode_finds(requests), Plan(requests, [], None, versions_from)
    gets = _encode_gets(requests)
    if gets is not None:
        return gets, Plan(requests, [], None, versions_from)
    parts: list[bytes] = []
    replies: list[Reply] = []
    awaited: list[tuple[ReplyKind, int]] = []
    has_open_add = is_quiet = False
    asked_seconds = lifetime = 0
    for index, request in enumerate(requests):
        is_quiet = False
        if isinstance(request, Add):
            key = request.key
            if not is_key(key):
                check_key(key)
            if request.ttl_seconds != asked_seconds:
                asked_seconds = request.ttl_seconds
                lifetime = lifetime_seconds(asked_seconds)
            value = request.value
            parts.append(b"ms %b %d T%d ME q O%d\r\n%b\r\n" % (key, len(value), lifetime, index, value))
            replies.append(STORED)
            has_open_add = is_quiet = True
            continue
        if isinstance(request, Delete) and request.version is None:
            key = request.key
            if not is_key(key):
                check_key(key)
            parts.append(b"delete %b noreply\r\n" % key)
            replies.append(DONE)
            is_quiet = True
            continue
        if has_open_add:
            parts.append(FENCE)
            awaited.append((ReplyKind.FENCE, index))
            has_open_add = False
        replies.append(MISSING)
        kind, command = _encode_spoken(request, versions_from)
        parts.append(command)
        awaited.append((kind, index))
    if is_quiet:
        parts.append(FENCE)
        awaited.append((ReplyKind.FENCE, len(replies)))
    return parts, Plan(requests, replies, awaited, versions_from)


def _encode_gets(requests: Sequence[Request]) -> list[bytes] | None:
    """The commands of a flow in which every request is a `Get`, as nearly all that a reader sends are; else None."""
    parts: list[bytes] = []
    asked_seconds: int | None = None
    flags = b""
    for request in requests:
        if not isinstance(request, Get):
            return None
        key = request.key
        if not is_key(key):
            check_key(key)
        if request.vivify_ttl_seconds != asked_seconds:
            asked_seconds = request.vivify_ttl_seconds
            flags = _get_flags(asked_seconds)
        parts.append(b"mg " + key + flags)
    return parts


@lru_cache(maxsize=64)
def _get_flags(vivify_ttl_seconds: int) -> bytes:
    """The end of a ``mg``. N before t: the flags are worked off in order, else a new stub answers t-1."""
    lifetime = lifetime_seconds(vivify_ttl_seconds)
    return b" N%d v c t\r\n" % lifetime if lifetime else b" v c t\r\n"


@lru_cache(maxsize=8192)
def encode_find(key: bytes) -> bytes:
    """The command for the value alone. Raises `FormatError` as `encode_flow`."""
    if not is_key(key):
        check_key(key)
    return b"mg %b v\r\n" % key


def encode_finds(finds: Finds) -> list[bytes]:
    """The commands of all of them. Raises `FormatError` as `encode_flow`."""
    keys = finds.keys
    if keys and not _are_keys(b"\n".join(keys)):
        for key in keys:
            check_key(key)
    return [b"mg ", b" v\r\nmg ".join(keys), b" v\r\n"] if keys else []


def plan_strikes(strikes: Strikes) -> Plan:
    """How the answer to all of them is to be read, a `FENCE` behind them."""
    count = len(strikes)
    replies: list[Reply] = [*[STORED] * len(strikes.stripes), *[DONE] * len(strikes.keys)]
    awaited = [(ReplyKind.FENCE, count)] if count else []
    return Plan(strikes, replies, awaited, 0)


def encode_strikes(strikes: Strikes, start: int, end: int) -> list[bytes]:
    """The commands of some of them. Raises `FormatError` as `encode_flow`."""
    chunk, count = strikes.chunk, len(strikes.stripes)
    stripes = strikes.stripes[start:end]
    keys = strikes.keys[max(0, start - count) : max(0, end - count)]
    names = [*stripes, *keys]
    if names and not _are_keys(b"\n".join(names)):
        for name in names:
            check_key(name)
    commands = []
    if stripes:
        tail = b" %d MA q k\r\n%b\r\n" % (len(chunk), chunk)
        commands += [b"ms ", (tail + b"ms ").join(stripes), tail]
    if keys:
        commands += [b"delete ", b" noreply\r\ndelete ".join(keys), b" noreply\r\n"]
    return commands


def _encode_spoken(request: Get | Cas | Delete | Append, versions_from: int) -> tuple[ReplyKind, bytes]:
    """A request that always gets an answer."""
    key = request.key
    if not is_key(key):
        check_key(key)
    if isinstance(request, Append):
        return ReplyKind.APPENDED, b"ms %b %d MA\r\n%b\r\n" % (key, len(request.value), request.value)
    if isinstance(request, Get):
        return ReplyKind.ITEM, b"mg " + key + _get_flags(request.vivify_ttl_seconds)
    lifetime = lifetime_seconds(request.ttl_seconds) if isinstance(request, Cas) else 0
    assert request.version is not None
    version = request.version - versions_from
    if not 0 < version < VERSION_LIMIT:
        # No item has such a version on this connection, and C0 must never come to mean "any": only ask whether the
        # key is there
        return ReplyKind.PRESENCE, b"mg %b\r\n" % key
    if isinstance(request, Delete):
        return ReplyKind.DELETED, b"md %b C%d\r\n" % (key, version)
    value = request.value
    return ReplyKind.CAS, b"ms %b %d T%d C%d c\r\n%b\r\n" % (key, len(value), lifetime, version, value)


_are_keys: Final = re.compile(
    rb"[!-~\x80-\xff]{1,%d}(?:\n[!-~\x80-\xff]{1,%d})*" % (KEY_BYTES_MAX, KEY_BYTES_MAX)
).fullmatch
"""Truthy for keys, one a line, that `is_key` takes all."""
_match_conflict: Final = re.compile(rb"NS O([0-9]{1,10})").fullmatch
_match_value: Final = re.compile(rb"(?:VA ([0-9]{1,10})(?: [WXZ])*|EN)\r\n").match
_match_item: Final = re.compile(rb"VA ([0-9]{1,10}) c([0-9]{1,20}) t(-?[0-9]{1,10})((?: [WXZ])*)\r\n").match


class ReplyReader:
    """Lines and blocks out of what ``receive`` returns; it returns at least one byte or raises."""

    __slots__ = ("_buffer", "_position", "_receive")

    def __init__(self, receive: Callable[[], bytes], received: bytes = b"") -> None:
        self._receive = receive
        self._buffer = received
        self._position = 0

    def take_items(self, found: list[Reply], count: int, versions_from: int) -> None:
        """Add the next replies until there are ``count``, as far as they are items that have arrived whole."""
        if self._position == len(self._buffer):
            self._buffer, self._position = self._receive(), 0
        buffer, position = self._buffer, self._position
        add = found.append
        for _ in range(count - len(found)):
            head = _match_item(buffer, position)
            if head is None:
                break
            size, version, ttl_seconds, marks = head.groups()
            start = head.end()
            end = start + int(size)
            if not buffer.startswith(b"\r\n", end):
                break
            position = end + 2
            if marks:
                won, lease = b"W" in marks, b"Z" in marks
                add(Item(buffer[start:end], versions_from + int(version), int(ttl_seconds), won, lease))
            else:
                add(Item(buffer[start:end], versions_from + int(version), int(ttl_seconds)))
        self._position = position

    def take_values(self, found: list[Any], count: int) -> None:
        """Add ``count`` replies to ``mg KEY v``: values, None if the key is absent."""
        if not count:
            return
        buffer, position = self._buffer, self._position
        if position == len(buffer):
            buffer, position = self._receive(), 0
        add = found.append
        for _ in range(count):
            head = _match_value(buffer, position)
            if head is not None:
                size = head[1]
                if size is None:
                    add(None)
                    position = head.end()
                    continue
                start = head.end()
                end = start + int(size)
                if buffer.startswith(b"\r\n", end):
                    add(buffer[start:end])
                    position = end + 2
                    continue
            # This one has not come whole
            self._buffer, self._position = buffer, position
            add(_read_value(self))
            buffer, position = self._buffer, self._position
        self._buffer, self._position = buffer, position

    def line(self) -> bytes:
        """The next line, without its end."""
        end = self._buffer.find(b"\r\n", self._position)
        while end < 0:
            if len(self._buffer) - self._position > LINE_BYTES_MAX:
                raise ProtocolError(f"no line end after {self._buffer[self._position :][:60]!r}")
            self._buffer = self._buffer[self._position :] + self._receive()
            self._position = 0
            end = self._buffer.find(b"\r\n")
        line = self._buffer[self._position : end]
        self._position = end + 2
        return line

    def block(self, size: int) -> bytes:
        """``size`` bytes and the line end after them, which is not returned."""
        end = self._position + size
        if end + 2 > len(self._buffer):
            parts = [self._buffer[self._position :]]
            missing = end + 2 - len(self._buffer)
            while missing > 0:
                parts.append(self._receive())
                missing -= len(parts[-1])
            self._buffer = b"".join(parts)
            self._position, end = 0, size
        if self._buffer[end : end + 2] != b"\r\n":
            raise ProtocolError(f"a value of {size} bytes does not end where it should")
        value = self._buffer[self._position : end]
        self._position = end + 2
        return value

    def expect_end(self) -> None:
        """Everything that was received has been read; more is not the answer to anything."""
        if self._position != len(self._buffer):
            raise ProtocolError(f"bytes after the last reply: {self._buffer[self._position :][:60]!r}")


def decode_flow(plan: Plan, reader: ReplyReader) -> list[Reply]:
    """The replies of a flow, in the order of its requests. Raises `ProtocolError` for anything that does not
    fit."""
    replies = plan.replies
    versions_from = plan.versions_from
    if type(plan.requests) is Finds:
        reader.take_values(replies, len(plan.requests))
        reader.expect_end()
        return replies
    if plan.awaited is None:
        count = len(plan.requests)
        while len(replies) < count:
            reader.take_items(replies, count, versions_from)
            if len(replies) < count:
                replies.append(_read_item(reader, versions_from))
        reader.expect_end()
        return replies
    if isinstance(plan.requests, Strikes):
        _read_strikes(reader, plan.requests, replies)
        reader.expect_end()
        return replies
    run_start = 0
    for kind, index in plan.awaited:
        if kind is ReplyKind.ITEM:
            replies[index] = _read_item(reader, versions_from)
        elif kind is ReplyKind.FENCE:
            _read_run(reader, replies, run_start, index)
            run_start = index
        elif kind is ReplyKind.CAS:
            replies[index] = _read_cas(reader, versions_from)
        else:
            replies[index] = _read_word(reader, _WORDS[kind])
    reader.expect_end()
    return replies


_WORDS: Final[dict[ReplyKind, dict[bytes, Reply]]] = {
    ReplyKind.DELETED: {b"HD": DONE, b"EX": CONFLICT, b"NF": MISSING},
    ReplyKind.PRESENCE: {b"HD": CONFLICT, b"EN": MISSING},
    ReplyKind.APPENDED: {b"HD": STORED, b"NS": CONFLICT, **dict.fromkeys(REFUSALS, CONFLICT)},
}


def _read_word(reader: ReplyReader, words: dict[bytes, Reply]) -> Reply:
    line = reader.line()
    reply = words.get(line.rstrip())
    if reply is None:
        raise ProtocolError(f"expected one of {sorted(words)}, got {line[:200]!r}")
    return reply


def _read_item(reader: ReplyReader, versions_from: int) -> Reply:
    line = reader.line()
    if line == b"EN":
        return MISSING
    words = line.split(b" ")
    try:
        code, size_text, version, ttl = words[:4]
        size = int(size_text)
        if code != b"VA" or version[:1] != b"c" or ttl[:1] != b"t" or not 0 <= size <= VALUE_BYTES_MAX:
            raise ProtocolError(f"expected VA with c and t, or EN, got {line[:200]!r}")
        version_number, ttl_seconds = int(version[1:]) + versions_from, int(ttl[1:])
    except ValueError as error:
        raise ProtocolError(f"expected VA with c and t, or EN, got {line[:200]!r}") from error
    value = reader.block(size)
    if len(words) == 4:
        return Item(value, version_number, ttl_seconds)
    return Item(value, version_number, ttl_seconds, b"W" in words[4:], b"Z" in words[4:])


def read_value(reader: ReplyReader) -> bytes | None:
    """The whole answer to ``mg KEY v``: the value, or None if the key is absent."""
    value = _read_value(reader)
    reader.expect_end()
    return value


def _read_value(reader: ReplyReader) -> bytes | None:
    line = reader.line()
    found = _match_value(line + b"\r\n")
    if found is None or found.end() != len(line) + 2 or int(found[1] or 0) > VALUE_BYTES_MAX:
        raise ProtocolError(f"expected VA with a size, or EN, got {line[:200]!r}")
    return None if found[1] is None else reader.block(int(found[1]))


def _read_cas(reader: ReplyReader, versions_from: int) -> Reply:
    line = reader.line()
    if line[:4] == b"HD c":
        try:
            return Stored(int(line[4:]) + versions_from)
        except ValueError as error:
            raise ProtocolError(f"expected HD with c, got {line[:200]!r}") from error
    code = line[:2]
    if code == b"EX" and line[2:3] in b" ":
        return CONFLICT
    if code == b"NF" and line[2:3] in b" ":
        return MISSING
    if line in REFUSALS:
        return Refused(line.partition(b" ")[2].decode())
    raise ProtocolError(f"expected HD, EX or NF, got {line[:200]!r}")


def _read_run(reader: ReplyReader, replies: list[Reply], start: int, end: int) -> None:
    """Read the replies of the quiet requests from ``start`` to ``end``, up to their fence."""
    while (line := reader.line()) != b"MN":
        found = _match_conflict(line)
        if found is None:
            raise ProtocolError(f"a quiet request failed: {line[:200].decode('latin-1')}")
        index = int(found[1])
        if not start <= index < end or replies[index] is not STORED:
            raise ProtocolError(f"NS O{index} answers no store between {start} and {end}")
        replies[index] = CONFLICT


def _read_strikes(reader: ReplyReader, strikes: Strikes, replies: list[Reply]) -> None:
    """Note the appends that found no stripe. A refusal for memory does not say whose it is: then none counts."""
    places: dict[bytes, int] = {}
    heard = 0
    while replies and (line := reader.line()) != b"MN":
        heard += 1
        if heard > len(strikes.stripes):
            raise ProtocolError(f"more answers than appends: {line[:200].decode('latin-1')}")
        if line in REFUSALS:
            replies[: len(strikes.stripes)] = [CONFLICT] * len(strikes.stripes)
            continue
        places = places or {stripe: place for place, stripe in enumerate(strikes.stripes)}
        place = places.get(line[4:]) if line.startswith(b"NS k") else None
        if place is None:
            raise ProtocolError(f"a quiet append failed: {line[:200].decode('latin-1')}")
        replies[place] = CONFLICT
