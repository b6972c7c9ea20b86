"""MariaDB GTID positions: ``domain-server-sequence`` for each replication domain.

A position means everything up to the sequence number in its domain. That holds only under
``gtid_strict_mode`` (the preflight demands it, F59). The server id is not a part of the order, but two
servers that reached one sequence number made two histories: 0-1-100 and 0-2-100 do not contain one another.
So each domain holds its sequence and the set of servers that were named at exactly that number (nearly
always one).

Never talks to a server, and never guesses: text or bytes that do not parse raise `FormatError`.
Called through ``freshness.position``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from freshness.errors import FlavorMismatch, FormatError
from freshness.position.order import Position
from freshness.position.varint import NUMBER_MAX, ByteReader, append_varint, varint

ENCODED_MARIADB: Final = 0x12
"""First byte of the binary form: version 1 (high half), MariaDB (low half)."""

_ID_MAX = (1 << 32) - 1
_VITESS_PREFIX = "MariaDB/"
_GTID = re.compile(r"([0-9]{1,10})-([0-9]{1,10})-([0-9]{1,20})", re.ASCII)
_LOOKS_MYSQL = re.compile(r"MySQL56/|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-", re.ASCII)
_EXPECTED = "expected domain-server-sequence, as in 0-1-100, several separated by commas"


class MariadbGtid(NamedTuple):
    """One transaction's number, ``domain-server-sequence``. Sequence 0 stands for none yet."""

    domain: int
    server: int
    sequence: int


class _Head(NamedTuple):
    """The head of a domain: its highest sequence number, and the servers named at that number."""

    sequence: int
    servers: frozenset[int]


class MariadbPosition(Position):
    """A MariaDB position, as ``@@global.gtid_slave_pos`` prints it."""

    __slots__ = ("_encoded", "_hash", "_heads")

    flavor = "mariadb"

    _heads: Mapping[int, _Head]
    _encoded: bytes | None
    _hash: int | None

    def __init__(self) -> None:
        """The empty position. Others come from `of`, `parse`, `decode` and the set operations."""
        self._heads = {}
        self._encoded = None
        self._hash = None

    @classmethod
    def of(cls, domain: int, server: int, sequence: int) -> MariadbPosition:
        """Everything up to one GTID. Raises `FormatError` for numbers out of range (sequences start at 1)."""
        if not (0 <= domain <= _ID_MAX and 0 <= server <= _ID_MAX and 1 <= sequence <= NUMBER_MAX):
            raise _out_of_range(domain, server, sequence)
        return _from_heads({domain: _Head(sequence, _alone(server))})

    @classmethod
    def parse(cls, text: str) -> MariadbPosition:
        """Read a position: the union of the GTIDs that it names. "" is the empty position. A sequence number 0 is
        accepted, since an operator can set a server to it; it means "nothing yet". Raises `FormatError`;
        `FlavorMismatch` if the text is a MySQL GTID set."""
        if _LOOKS_MYSQL.match(text.strip()):
            raise FlavorMismatch(
                f"{text.strip()[:80]!r} is not a MariaDB position",
                hint='it looks like a MySQL GTID set; is the keyspace\'s flavor "mysql"?',
            )
        position = cls()
        for gtid in parse_gtids(text):
            if gtid.sequence:
                position = position.union(cls.of(*gtid))
        return position

    @classmethod
    def decode(cls, data: bytes) -> MariadbPosition:
        """Read what `encode` wrote. Raises `FormatError` for anything else."""
        position = _from_heads(_decode_heads(data))
        position._encoded = bytes(data)
        return position

    def encode(self) -> bytes:
        """See `Position.encode`. Kept after the first call."""
        if self._encoded is None and len(self._heads) == 1:
            [(domain, (sequence, servers))] = self._heads.items()
            start, end = _lone_ends(domain, servers)
            self._encoded = b"%b%b%b" % (start, varint(sequence - 1), end)
        if self._encoded is None:
            out = bytearray((ENCODED_MARIADB,))
            append_varint(out, len(self._heads))
            before = -1
            for domain in sorted(self._heads) if len(self._heads) > 1 else self._heads:
                sequence, servers = self._heads[domain]
                append_varint(out, domain - before - 1)
                append_varint(out, sequence - 1)
                append_varint(out, len(servers) - 1)
                _append_rising(out, sorted(servers) if len(servers) > 1 else servers)
                before = domain
            self._encoded = bytes(out)
        return self._encoded

    def contains(self, other: Position) -> bool:
        if not isinstance(other, MariadbPosition):
            return False
        for domain, (sequence, servers) in other._heads.items():
            mine = self._heads.get(domain)
            if mine is None or mine.sequence < sequence:
                return False
            if mine.sequence == sequence and not servers <= mine.servers:
                return False
        return True

    def union(self, other: Position) -> MariadbPosition:
        """See `Position.union`: the higher sequence wins, an equal one unites the servers."""
        merged: dict[int, _Head] | None = None
        for domain, theirs in _same_flavor(other)._heads.items():
            mine = self._heads.get(domain)
            if mine is not None:
                if mine.sequence > theirs.sequence or mine == theirs:
                    continue
                if mine.sequence == theirs.sequence:
                    theirs = _Head(mine.sequence, mine.servers | theirs.servers)
            if merged is None:
                merged = dict(self._heads)
            merged[domain] = theirs
        return self if merged is None else _from_heads(merged)

    def union_all(self, others: Iterable[Position]) -> MariadbPosition:
        merged = dict(self._heads)
        for other in others:
            for domain, theirs in _same_flavor(other)._heads.items():
                mine = merged.get(domain)
                if mine is None or mine.sequence < theirs.sequence:
                    merged[domain] = theirs
                elif mine.sequence == theirs.sequence:
                    merged[domain] = _Head(mine.sequence, mine.servers | theirs.servers)
        return self if merged == self._heads else _from_heads(merged)

    def intersection(self, other: Position) -> MariadbPosition:
        """See `Position.intersection`: the lower sequence wins in each domain that both have.

        If both stand at one sequence with no server in common, the domain is left out: their common part ends
        somewhere below that number, at an unknown server. The result serves to resume a stream: a position
        that is too small only sends events again, and one that is too large would skip events.
        """
        theirs = _same_flavor(other)._heads
        common: dict[int, _Head] = {}
        for domain, one in self._heads.items():
            two = theirs.get(domain)
            if two is None:
                continue
            if one.sequence != two.sequence:
                common[domain] = min(one, two, key=lambda head: head.sequence)
            elif one.servers & two.servers:
                common[domain] = _Head(one.sequence, one.servers & two.servers)
        return _from_heads(common)

    def subtract(self, other: Position) -> MariadbPosition:
        """The domains that ``other`` does not contain: a domain cannot be cut at its beginning."""
        theirs = _same_flavor(other)
        parts = {domain: _from_heads({domain: head}) for domain, head in self._heads.items()}
        return _from_heads(
            {domain: self._heads[domain] for domain, part in parts.items() if not theirs.contains(part)}
        )

    def fill_gaps(self, streamed: Position) -> MariadbPosition:
        """This position: a domain has no gaps."""
        _same_flavor(streamed)
        return self

    def by_source(self) -> dict[str, Position]:
        return {str(domain): _from_heads({domain: self._heads[domain]}) for domain in sorted(self._heads)}

    def intervals(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """See `Position.intervals`. Each domain has one, which begins at 1."""
        return {str(domain): ((1, self._heads[domain].sequence),) for domain in sorted(self._heads)}

    def gtids(self) -> list[MariadbGtid]:
        """The GTIDs that the text names, in its order."""
        return [
            MariadbGtid(domain, server, self._heads[domain].sequence)
            for domain in sorted(self._heads)
            for server in sorted(self._heads[domain].servers)
        ]

    @property
    def is_empty(self) -> bool:
        return not self._heads

    @property
    def interval_count(self) -> int:
        return len(self._heads)

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{sequence}" for domain, server, sequence in self.gtids())

    def __repr__(self) -> str:
        return f"MariadbPosition({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MariadbPosition) and self._heads == other._heads

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._heads.items()))
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return (MariadbPosition.decode, (self.encode(),))


@lru_cache(maxsize=1024)
def _alone(server: int) -> frozenset[int]:
    return frozenset((server,))


def _from_heads(heads: Mapping[int, _Head]) -> MariadbPosition:
    position = MariadbPosition.__new__(MariadbPosition)  # a busy log needs it 100,000 times a second
    position._heads, position._encoded, position._hash = heads, None, None
    return position


def _same_flavor(other: Position) -> MariadbPosition:
    if not isinstance(other, MariadbPosition):
        raise FlavorMismatch(
            f"a MariaDB position cannot be combined with a {other.flavor} position {str(other)[:80]!r}",
            hint="keep the positions of each lineage apart",
        )
    return other


def parse_gtids(text: str) -> list[MariadbGtid]:
    """The GTIDs of a list in which a domain can stand several times, as ``@@global.gtid_binlog_state``. Raises
    `FormatError`."""
    text = text.strip().removeprefix(_VITESS_PREFIX).strip()
    return [_parse_gtid(item.strip(), text) for item in text.split(",")] if text else []


def _parse_gtid(item: str, text: str) -> MariadbGtid:
    match = _GTID.fullmatch(item)
    if match is None:
        raise FormatError(f"MariaDB GTID {item[:60]!r} in {text[:120]!r}", hint=_EXPECTED)
    domain, server, sequence = map(int, match.groups())
    if max(domain, server) > _ID_MAX or sequence > NUMBER_MAX:
        raise _out_of_range(domain, server, sequence)
    return MariadbGtid(domain, server, sequence)


def _out_of_range(domain: int, server: int, sequence: int) -> FormatError:
    return FormatError(
        f"MariaDB GTID {domain}-{server}-{sequence} is out of range",
        hint="domain and server have 32 bits, the sequence 64 bits, and the sequence starts at 1",
    )


@lru_cache(maxsize=1024)
def _lone_ends(domain: int, servers: frozenset[int]) -> tuple[bytes, bytes]:
    """The bytes before and behind the sequence of a position of one domain, as each transaction's own position is."""
    start, end = bytearray((ENCODED_MARIADB,)), bytearray()
    append_varint(start, 1)
    append_varint(start, domain)
    append_varint(end, len(servers) - 1)
    _append_rising(end, sorted(servers))
    return bytes(start), bytes(end)


def _append_rising(out: bytearray, numbers: Iterable[int]) -> None:
    before = -1
    for number in numbers:
        append_varint(out, number - before - 1)
        before = number


def _decode_heads(data: bytes) -> dict[int, _Head]:
    reader = ByteReader(data, "MariaDB position")
    if reader.read_byte() != ENCODED_MARIADB:
        raise reader.error(f"starts with {data[0]:#04x}, expected {ENCODED_MARIADB:#04x}")
    heads: dict[int, _Head] = {}
    domain = -1
    for _ in range(reader.read_varint()):
        domain = _read_rising(reader, domain)
        sequence = reader.read_varint() + 1
        if sequence > NUMBER_MAX:
            raise reader.error(f"has a sequence above {NUMBER_MAX} at byte {reader.offset}")
        servers: list[int] = []
        for _ in range(reader.read_varint() + 1):
            servers.append(_read_rising(reader, servers[-1] if servers else -1))
        heads[domain] = _Head(sequence, frozenset(servers))
    reader.finish()
    return heads


def _read_rising(reader: ByteReader, before: int) -> int:
    number = before + reader.read_varint() + 1
    if number > _ID_MAX:
        raise reader.error(f"has a domain or server above {_ID_MAX} at byte {reader.offset}")
    return number
