"""Positions: sets of executed transactions. All other folders import them from here.

`Position` is the role (containment, union, intersection, text, bytes); `MysqlGtidSet` and `MariadbPosition` implement
it. Never mixes flavors and never consults a clock: containment decides (ADR 0001).
"""

from __future__ import annotations

from typing import Final

from freshness.errors import FormatError
from freshness.position.mariadb import ENCODED_MARIADB, MariadbPosition, parse_gtids
from freshness.position.mysql import ENCODED_MYSQL, MysqlGtidSet
from freshness.position.order import Order, Position

__all__ = [
    "FLAVORS",
    "MariadbPosition",
    "MysqlGtidSet",
    "Order",
    "Position",
    "decode_position",
    "empty_position",
    "parse_gtid",
    "parse_gtids",
    "parse_position",
]

FLAVORS: Final = ("mysql", "mariadb")

_EMPTY: Final[dict[str, Position]] = {"mysql": MysqlGtidSet(), "mariadb": MariadbPosition()}


def parse_position(flavor: str, text: str) -> Position:
    """Read a position from text, as a server of this flavor prints it (Vitess prefixes are accepted). Raises
    `FormatError` for malformed text or an unknown flavor, `FlavorMismatch` for text of the other one."""
    kind = type(empty_position(flavor))
    assert issubclass(kind, MysqlGtidSet | MariadbPosition)
    return kind.parse(text)


def parse_gtid(flavor: str, text: str) -> Position:
    """Read the GTID of one transaction, as its event in the log names it: ``UUID:NUMBER``, ``UUID:TAG:NUMBER`` or
    ``DOMAIN-SERVER-NUMBER``. Raises `FormatError` for anything else, more than one GTID included."""
    position = parse_position(flavor, text)
    if flavor == "mysql":
        intervals = [each for source in position.intervals().values() for each in source]
        is_one = len(intervals) == 1 and intervals[0][0] == intervals[0][1]
    else:
        is_one = len(parse_gtids(text)) == 1 and not position.is_empty
    if not is_one:
        example = "3e11fa47-71ca-11e1-9e33-c80aa9429562:23" if flavor == "mysql" else "0-1-100"
        raise FormatError(f"{text[:120]!r} is not the GTID of one transaction", hint=f"such as {example}")
    return position


def decode_position(data: bytes) -> Position:
    """Read a position from what `Position.encode` wrote; its first byte says which flavor. Raises `FormatError` for
    bytes that are cut, too long, malformed, or of another version."""
    start = data[0] if data else None
    if start == ENCODED_MYSQL:
        return MysqlGtidSet.decode(data)
    if start == ENCODED_MARIADB:
        return MariadbPosition.decode(data)
    raise FormatError(
        f"binary position starts with {bytes(data[:1])!r}, which names no known version and flavor",
        hint="it was written by a newer version, or is no position; upgrade this process or drop the value",
    )


def empty_position(flavor: str) -> Position:
    """The position that holds nothing. Raises `FormatError` for an unknown flavor."""
    if flavor not in _EMPTY:
        raise FormatError(f"unknown flavor {flavor[:40]!r}", hint=f"expected one of {', '.join(FLAVORS)}")
    return _EMPTY[flavor]
