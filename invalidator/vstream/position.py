"""Positions as vtgate writes them, ``MySQL56/uuid:1-5``, and what one transaction added to them.

vtgate gives the position after each transaction; older versions do not name the transaction's own GTID, so it is the
difference.
"""

from __future__ import annotations

from typing import Final

from freshness.errors import FormatError, StreamStopped
from freshness.position import MysqlGtidSet, Position

_PREFIX: Final = "MySQL56/"


def parse_gtid(text: str, what: str) -> MysqlGtidSet:
    """Raises `StreamStopped` if it is not a MySQL GTID set: Vitess on MariaDB, or without GTIDs (``FilePos/…``)."""
    try:
        return MysqlGtidSet.parse(text)
    except FormatError as error:
        raise StreamStopped(
            f"{what} is {text[:120]!r}: {error.message}", hint="only Vitess on MySQL with GTIDs can be followed"
        ) from error


def format_gtid(position: Position) -> str:
    """The text for a request. Raises `StreamStopped` for tagged GTIDs, which Vitess cannot read."""
    tagged = next((source for source in position.intervals() if ":" in source), None)
    if tagged is not None:
        raise StreamStopped(
            f"the start position has tagged GTIDs: {tagged}",
            hint="Vitess does not know tagged GTIDs: do not set gtid_next='AUTOMATIC:tag' on its servers",
        )
    return f"{_PREFIX}{position}"


class ShardProgress:
    """The position of a shard, from texts that differ a little each time: only the differences are read. A position
    may have thousands of intervals, and vtgate sends it with every transaction."""

    def __init__(self, start: Position) -> None:
        self.position = start
        self._parts = _split(str(start)) or frozenset()

    def find_added(self, text: str, what: str) -> MysqlGtidSet | None:
        """The part of the position in ``text`` that this one lacks; None if it lacks some of this one. Raises
        `StreamStopped` if it is not a MySQL GTID set."""
        parts = _split(text)
        if parts is not None:
            fresh = parse_gtid(",".join(parts - self._parts), what)
            gone = parse_gtid(",".join(self._parts - parts), what)
            if fresh.contains(gone):
                return fresh.subtract(gone)
        whole = parse_gtid(text, what)
        return whole.subtract(self.position) if whole.contains(self.position) else None

    def advance(self, added: Position, text: str = "") -> None:
        """``added`` was executed, after which the position is that of ``text``, if it is given."""
        self.position = self.position.union(added)
        self._parts = _split(text or str(self.position)) or frozenset()


def _split(text: str) -> frozenset[str] | None:
    """Each interval with its source, as text. None if it is not of the plain form that Vitess writes."""
    parts = []
    for item in filter(None, text.removeprefix(_PREFIX).split(",")):
        source, *intervals = item.split(":")
        if not intervals or not all(interval[:1].isdigit() for interval in intervals):
            return None
        parts += [f"{source}:{interval}" for interval in intervals]
    return frozenset(parts)
