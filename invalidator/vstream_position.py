"""Positions as vtgate writes them, ``MySQL56/uuid:1-5``, and what one transaction added to them.

vtgate gives the position after each transaction; older versions do not name the transaction's own GTID, so it is the
difference. Called by ``invalidator.vstream`` and ``invalidator.vstream_transaction``.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from freshness.errors import FormatError, StreamStopped
from freshness.position import Position, parse_position

FLAVOR: Final = "mysql"
_PREFIX: Final = "MySQL56/"

_Numbers: TypeAlias = dict[str, list[tuple[int, int]]]


def parse_gtid(text: str, what: str) -> Position:
    """Raises `StreamStopped` where it is no MySQL GTID set: Vitess on MariaDB, or without GTIDs (``FilePos/…``)."""
    try:
        return parse_position(FLAVOR, text)
    except FormatError as error:
        raise StreamStopped(
            f"{what} is {text[:120]!r}: {error.message}",
            hint="only Vitess on MySQL with GTIDs can be followed",
        ) from error


def format_gtid(position: Position) -> str:
    """The text for a request. Raises `StreamStopped` for tagged GTIDs, which Vitess cannot read."""
    for item in str(position).split(","):
        _, *parts = item.split(":")
        if not all(part[:1].isdigit() for part in parts):
            raise StreamStopped(
                f"the start position has tagged GTIDs: {item[:120]}",
                hint="Vitess does not know tagged GTIDs: do not set gtid_next='AUTOMATIC:tag' on its servers",
            )
    return f"{_PREFIX}{position}"


def subtract(whole: Position, part: Position) -> Position:
    """The transactions of ``whole`` that are not in ``part``."""
    held = _read_numbers(part)
    left = [
        f"{source}:{first}-{last}"
        for source, intervals in _read_numbers(whole).items()
        for first, last in _cut(intervals, held.get(source, []))
    ]
    return parse_position(FLAVOR, ",".join(left))


def _read_numbers(position: Position) -> _Numbers:
    """Sorted intervals, both ends included, by ``uuid`` or ``uuid:tag``."""
    found: _Numbers = {}
    for item in filter(None, str(position).split(",")):
        uuid, *parts = item.split(":")
        source = uuid
        for part in parts:
            if part[:1].isdigit():
                first, _, last = part.partition("-")
                found.setdefault(source, []).append((int(first), int(last or first)))
            else:
                source = f"{uuid}:{part}"
    return found


def _cut(intervals: list[tuple[int, int]], held: list[tuple[int, int]]) -> list[tuple[int, int]]:
    left = []
    for first, last in intervals:
        for held_first, held_last in held:
            if held_last < first or held_first > last:
                continue
            if first < held_first:
                left.append((first, held_first - 1))
            first = held_last + 1
        if first <= last:
            left.append((first, last))
    return left
