"""When an invalidation is acknowledged, for the two strategies whose invalidations happen in other processes.

`StreamLedger` joins what the writers committed with what the stream deleter reports, `ProgressLedger` with what the
progress watcher does. Both only watch; neither makes anything happen.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from examples.demo.measurement import PROFILE, Meter, Row, Write, owner_of
from freshness.config.keyspace import GtidFlavor
from freshness.position import Position, parse_position

if TYPE_CHECKING:
    from examples.demo.evidence import Witness

REPORTS_MAX: Final = 1000
"""Kept of each node: a commit's position is known within fewer changes of the record."""

_STATE_CHANGED: Final = 0x4000
_TRACK_GTIDS: Final = 3


class StreamLedger:
    """A write is acknowledged when all its rows are reported. The report may come before the commit returns."""

    def __init__(self, meter: Meter, witness: Witness | None = None) -> None:
        self._meter = meter
        self._witness = witness
        self._lock = threading.Lock()
        self._reported: dict[tuple[Row, int], float] = {}
        self._waiting: dict[tuple[Row, int], Write] = {}

    def committed(self, write: Write) -> None:
        with self._lock:
            self._waiting.update(dict.fromkeys(write.versions.items(), write))
            self._settle(write)

    def reported(self, row: Row, version: int, at: float) -> None:
        with self._lock:
            self._reported[row, version] = at
            write = self._waiting.get((row, version))
            if write is not None:
                self._settle(write)

    def _settle(self, write: Write) -> None:
        changes = list(write.versions.items())
        if all(change in self._reported for change in changes):
            for change in changes:
                del self._waiting[change]
            times = {row: self._reported.pop((row, version)) for row, version in changes}
            last = max(times.values())
            self._meter.acknowledge(write, last)
            if self._witness is not None:
                # A customer is deleted for its own row; a profile for each of its rows, the last time for the last
                ends = {
                    key: max(
                        at
                        for row, at in times.items()
                        if owner_of(row) == key[1] and (key[0] == PROFILE or row[0] == "customers")
                    )
                    for key in write.objects
                }
                self._witness.acknowledged(write, ends)


@dataclass(frozen=True, slots=True)
class _Waiting:
    write: Write
    position: Position
    nodes: frozenset[str]


class ProgressLedger:
    """Joins what the writers committed with what the progress watcher reports. A write is acknowledged when all nodes
    with objects of it have its position. ``lives``: the lives that each node had."""

    def __init__(self, nodes: Sequence[str], flavor: GtidFlavor, meter: Meter) -> None:
        self._flavor = flavor
        self._meter = meter
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._seen: dict[str, deque[tuple[float, Position]]] = {name: deque(maxlen=REPORTS_MAX) for name in nodes}
        self.lives: dict[str, set[str]] = {name: set() for name in nodes}

    def committed(self, write: Write, position: Position, nodes: frozenset[str]) -> None:
        """The progress may have come before the commit's own position is known: it counts from when it was seen."""
        with self._lock:
            self._waiting.append(_Waiting(write, position, nodes))
            self._settle()

    def reported(self, node: str, life: str, position: str, at: float) -> None:
        with self._lock:
            self.lives[node].add(life)
            self._seen[node].append((at, parse_position(self._flavor, position)))
            self._settle()

    def _settle(self) -> None:
        unacknowledged = []
        for each in self._waiting:
            times = [self._acknowledged_at(name, each.position) for name in each.nodes]
            known = [at for at in times if at is not None]
            if len(known) == len(times):
                self._meter.acknowledge(each.write, max(known))
            else:
                unacknowledged.append(each)
        self._waiting = unacknowledged

    def _acknowledged_at(self, node: str, position: Position) -> float | None:
        """When the node was first seen with the position, of the kept reports; None if its last one lacks it."""
        found = None
        for at, progress in reversed(self._seen[node]):
            if not progress.contains(position):
                break
            found = at
        return found


# -- the GTID of a commit ------------------------------------------------------------------------------


def track_gtids(connection: Any, flavor: str) -> None:
    """Make MySQL send the GTID of a commit in the answer to it."""
    if flavor == "mysql":
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION session_track_gtids = OWN_GTID")


def commit_position(connection: Any, cursor: Any, flavor: str) -> Position:
    """The position of the transaction that ``cursor`` has just committed, and of that alone. vtgate does not tell it:
    there it is the position of all that the shard has executed by now."""
    if flavor == "vitess":
        with connection.cursor() as asking:
            asking.execute("SELECT @@global.gtid_executed")
            return parse_position("mysql", asking.fetchone()[0])
    if flavor == "mysql":
        return parse_position(flavor, _find_tracked_gtid(cursor._result))
    with connection.cursor() as asking:
        asking.execute("SELECT @@last_gtid")
        return parse_position(flavor, asking.fetchone()[0])


def _find_tracked_gtid(result: Any) -> str:
    """The GTID in an OK packet (session state, protocol manual). pymysql keeps the bytes and does not read them."""
    assert result.server_status & _STATE_CHANGED, "the server reported no GTID for a commit"
    data: bytes = result.message
    _, rest = _split(data)  # the statement's own message
    changes, _ = _split(rest)
    while changes:
        kind = changes[0]
        change, changes = _split(changes[1:])
        if kind == _TRACK_GTIDS:
            gtid, _ = _split(change[1:])  # after one byte that names the encoding
            return gtid.decode("ascii")
    raise AssertionError("the server reported no GTID for a commit")


def _split(data: bytes) -> tuple[bytes, bytes]:
    """A length-encoded string at the start of ``data``, and what follows it."""
    first = data[0]
    size, start = {0xFC: (2, 3), 0xFD: (3, 4), 0xFE: (8, 9)}.get(first, (0, 1))
    length = int.from_bytes(data[1 : 1 + size], "little") if size else first
    return data[start : start + length], data[start + length :]
