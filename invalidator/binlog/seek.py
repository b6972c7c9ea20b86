"""The start of a stream that brings every transaction that was committed at or after a point in time.

Two ways: `TimeIndex` remembers when what passed by was received, and `find_position` searches a server's log files,
newest first. Both err to the early side: what was committed before the time may be in the stream too, nothing
committed since is left out. Never decides by time what is stale or fresh (F3, F4): this is for seeking only.

How sure the search is. MySQL notes for each transaction when it was committed by the server's clock; no session can
set that. MariaDB notes in whole seconds when the last statement of the transaction began, and a session may set that
(F4). There the stream begins before the last transaction in the log that seems to be older by ``margin_seconds``, in
a file behind one in which all seem to be. While somebody commits, heartbeats are enough, nothing is left out however
long other statements take and whatever times they claim; only the oldest file that is left is believed when it says
that it begins before the time. Else what can be left out is a commit whose last statement took longer than the margin
or claimed an older time, while nobody else committed anything for as long.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from freshness.config.server import ServerAddress
from freshness.database.connection import Connection, connect, connected, executed_position, read_rows, translated
from freshness.errors import HistoryPurged, StreamStopped
from freshness.position import Position, decode_position, parse_position
from invalidator.binlog.dump import dump_files, force_close
from invalidator.binlog.wire import event as events
from invalidator.binlog.wire.event import LogEvent
from invalidator.binlog.wire.tagged import read_tagged_gtid

log = logging.getLogger(__name__)

MARGIN_SECONDS: Final = {"mysql": 2.0, "mariadb": 60.0}
"""For MySQL it covers clocks that differ. For MariaDB see the module; a lock is waited for up to 50 s by default."""

ANSWER_SECONDS: Final = 15.0
SECOND_US: Final = 1_000_000

_FIRST_EVENTS: Final = 5
_START_EVENTS: Final = ("Previous_gtids", "Gtid_list")


@dataclass(frozen=True, slots=True)
class Mark:
    """A transaction in the log, or with ``position`` None the begin of a log file, and its time."""

    position: Position | None
    time_us: int


def find_position(
    address: ServerAddress, flavor: str, timestamp_us: int, *, margin_seconds: float | None = None
) -> Position:
    """A position from which every transaction committed at or after ``timestamp_us`` (µs since 1970, by the server's
    clock) is streamed. For a time in the future it is the head, with a warning.

    On a replica the time is that of the commit there. Raises `HistoryPurged` if the oldest log may begin later than
    that, `StreamStopped` for a log that cannot be read, `SourceUnavailable` and `SourceUnsuitable`.
    """
    margin = MARGIN_SECONDS[flavor] if margin_seconds is None else margin_seconds
    assert margin >= (1 if flavor == "mariadb" else 0), "MariaDB tells whole seconds"
    with connected(address, "searching the binary log", timeout_seconds=ANSWER_SECONDS) as connection:
        [(now_us,)] = read_rows(connection, "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)")
        if timestamp_us > int(now_us):
            log.warning(
                "the start time lies %.1f s in the future of %s:%d: the stream starts now",
                (timestamp_us - int(now_us)) / SECOND_US,
                address.host,
                address.port,
            )
            return executed_position(connection, flavor)
        cut_us = timestamp_us - round(margin * SECOND_US)
        return search(BinaryLog(connection, address, flavor), cut_us, int(now_us))


class BinaryLog:
    """A server's log files. Reads are done on connections of their own, each closed when its iterator is."""

    def __init__(self, connection: Connection, address: ServerAddress, flavor: str) -> None:
        self.flavor = flavor
        self.name = f"{address.host}:{address.port}"
        self._connection = connection
        self._address = address

    def files(self) -> list[str]:
        """Oldest first."""
        return [str(row[0]) for row in read_rows(self._connection, "SHOW BINARY LOGS")]

    def start_of(self, file: str) -> Position:
        """All that was logged before this file."""
        rows = read_rows(self._connection, f"SHOW BINLOG EVENTS IN %s LIMIT {_FIRST_EVENTS}", (file,))
        for row in rows:
            if row[2] in _START_EVENTS:
                return parse_position(self.flavor, str(row[5]).strip("[]").replace("\n", ""))
        raise StreamStopped(
            f"{self.name}: log file {file} does not say what is before it",
            hint="it was written without GTIDs: start from a position, or now",
        )

    def marks(self, file: str) -> Generator[Mark]:
        """The begin of the file, its transactions, and on through the following ones to the end of the log."""
        has_checksum = False
        for packet in self._dump(file):
            kind = packet[5] if len(packet) > 5 else 0
            if kind == events.FORMAT_DESCRIPTION:
                has_checksum = events.parse_format_description(packet).has_checksum
                yield Mark(None, int.from_bytes(packet[1:5], "little") * SECOND_US)
            elif kind == events.GTID:
                yield _read_mysql_mark(events.parse_event(packet, has_checksum=has_checksum))
            elif kind == events.MARIADB_GTID:
                group = events.parse_mariadb_gtid(events.parse_event(packet, has_checksum=has_checksum))
                yield Mark(group.position, group.timestamp_us)
            elif kind == events.GTID_TAGGED:
                gtid = read_tagged_gtid(events.parse_event(packet, has_checksum=has_checksum))
                yield Mark(gtid.position, gtid.committed_us)
            elif kind == events.ANONYMOUS_GTID:
                name, remedy = events.REMEDIES[kind]
                raise StreamStopped(
                    f"{self.name}: log file {file} or a later one has an event {kind} ({name})", hint=remedy
                )

    def _dump(self, file: str) -> Generator[bytes]:
        """The events of the file and of all after it, as network packets, up to the present end."""
        connection = connect(self._address, timeout_seconds=ANSWER_SECONDS)
        try:
            yield from dump_files(connection, file)
        except Exception as error:
            raise translated(error, self._address, f"reading log file {file}") from error
        finally:
            force_close(connection)


def _read_mysql_mark(event: LogEvent) -> Mark:
    """The time is the commit on this server. Not the original one: who replays an old log sets that (F4)."""
    body = event.body
    if len(body) < 49:
        raise StreamStopped(
            f"the GTID event at {event.log_pos} has no time of its commit", hint="MySQL 8.0.1 or later writes it"
        )
    # The top bit says that the original time follows
    time_us = int.from_bytes(body[42:49], "little") & ((1 << 55) - 1)
    return Mark(events.parse_mysql_gtid(event).position, time_us)


def search(files: BinaryLog, cut_us: int, now_us: int) -> Position:
    """The position after which all lies that may have been committed later than ``cut_us``. See `find_position`. It
    takes as long as reading two log files at most: some 100,000 transactions a second."""
    names = files.files()
    if not names:
        raise StreamStopped(f"{files.name} has no binary log", hint="start the server with --log-bin")
    if files.flavor == "mysql":
        return _search_exact(files, names, cut_us)
    return _search_doubtful(files, names, cut_us, now_us)


def _search_exact(files: BinaryLog, names: Sequence[str], cut_us: int) -> Position:
    for name in reversed(names):
        begin, first = _read_head(files, name)
        is_last_resort = name == names[0] and first is None and begin.time_us <= cut_us
        if is_last_resort or (first is not None and first.time_us <= cut_us):
            return scan_exact(files.marks(name), files.start_of(name), cut_us)
    start = files.start_of(names[0])
    if start.is_empty:
        return start
    raise _purged(files, names[0])


def _search_doubtful(files: BinaryLog, names: Sequence[str], cut_us: int, now_us: int) -> Position:
    """A file counts as one from before only if nothing in it says otherwise: a single session with a false time, or
    the time of a rotation, which is some session's, must not decide (F4)."""
    found: Position | None = None
    for name in reversed(names):
        start = files.start_of(name)
        begin, first = _read_head(files, name)
        scan = scan_doubtful(_marks_of_one_file(files, name), start, cut_us, now_us)
        if scan.is_cut:
            found = scan.position
        elif scan.position is not None:
            return scan.position if found is None else found
    # The oldest one holds the time, or is empty: nothing but its own word says when it was begun
    if begin.time_us <= cut_us and (found is not None or first is None):
        return start if found is None else found
    # MariaDB's log says nothing of what a copied server did not log: only the very first number proves the beginning
    if start.is_empty and (first is None or str(first.position).endswith("-1")):
        return start
    raise _purged(files, names[0])


def _purged(files: BinaryLog, oldest: str) -> HistoryPurged:
    return HistoryPurged(
        f"{files.name}: the oldest log file, {oldest}, may begin later than the start time",
        hint="purged (F15): start at a later time, or now; keep binary logs for longer",
    )


def _read_head(files: BinaryLog, name: str) -> tuple[Mark, Mark | None]:
    """The begin of a file, and its first transaction, if there is one."""
    marks = files.marks(name)
    begin = next(marks, None)
    if begin is None or begin.position is not None:
        raise StreamStopped(f"{files.name}: log file {name} has no first event", hint="is it damaged?")
    first = next(marks, None)
    marks.close()
    return begin, None if first is None or first.position is None else first


def _marks_of_one_file(files: BinaryLog, name: str) -> Iterator[Mark]:
    marks = files.marks(name)
    next(marks, None)
    yield from takewhile(lambda mark: mark.position is not None, marks)
    marks.close()


def scan_exact(marks: Iterable[Mark], start: Position, cut_us: int) -> Position:
    """``start`` and all transactions up to the first that was committed after ``cut_us``."""
    position = start
    for mark in marks:
        if mark.position is None:
            continue
        if mark.time_us > cut_us:
            break
        position = position.union(mark.position)
    return position


@dataclass(frozen=True, slots=True)
class Scan:
    """``position`` is None if no transaction seems older. ``is_cut``: flag, True if one with a later time came."""

    position: Position | None
    is_cut: bool


def scan_doubtful(marks: Iterable[Mark], start: Position, cut_us: int, now_us: int) -> Scan:
    """``start`` and the transactions before the last one whose time, not after ``cut_us``, was the latest so far.
    Transactions behind it that seem to be older began early, or were given a time: the time of their commit is
    unknown. The same holds for transactions whose time is yet to come."""
    position: Position | None = None
    reached, latest_us = start, 0
    for mark in marks:
        assert mark.position is not None
        if cut_us < mark.time_us <= now_us:
            return Scan(position, is_cut=True)
        if latest_us <= mark.time_us <= cut_us:
            position, latest_us = reached, mark.time_us
        reached = reached.union(mark.position)
    return Scan(position, is_cut=False)


class TimeIndex:
    """The position of one stream at each time: one position a second for a while, one a minute for long.

    A transaction that was received had been committed. So these times, unlike those in a log, are right up to the
    difference of two clocks. Memory is bounded by ``bytes_max`` of encoded positions, the oldest go first. `note` and
    `find` may be called by different threads.
    """

    def __init__(
        self,
        *,
        clock_error_seconds: float,
        seconds_kept: int = 600,
        minutes_kept: int = 3 * 24 * 60,
        bytes_max: int = 16 << 20,
    ) -> None:
        """``clock_error_seconds``: by how much this clock may differ from the one that asks."""
        self._error_us = round(clock_error_seconds * SECOND_US)
        self._bytes_max = bytes_max
        self._seconds = _Row(SECOND_US, seconds_kept)
        self._minutes = _Row(60 * SECOND_US, minutes_kept)
        self._lock = threading.Lock()

    def note(self, now_us: int, position: Position) -> None:
        """``position``: all that was received up to ``now_us``. A clock that goes back adds nothing."""
        with self._lock:
            self._seconds.add(now_us, position)
            self._minutes.add(now_us, position)
            while self.size_bytes > self._bytes_max:
                (self._minutes if self._minutes.times else self._seconds).drop()

    def find(self, timestamp_us: int) -> Position | None:
        """The latest position that was received before the time; None if it is no longer known."""
        with self._lock:
            wanted_us = timestamp_us - self._error_us
            found = self._seconds.find(wanted_us)
            return self._minutes.find(wanted_us) if found is None else found

    def clear(self) -> None:
        """The history is another one from now on."""
        with self._lock:
            self._seconds.clear()
            self._minutes.clear()

    @property
    def size_bytes(self) -> int:
        return self._seconds.size_bytes + self._minutes.size_bytes

    def __len__(self) -> int:
        return len(self._seconds.times) + len(self._minutes.times)


class _Row:
    """The first position of each period, for the last ``periods_max`` periods."""

    def __init__(self, period_us: int, periods_max: int) -> None:
        self.times: deque[int] = deque()
        self.size_bytes = 0
        self._positions: deque[bytes] = deque()
        self._period_us = period_us
        self._periods_max = periods_max

    def add(self, now_us: int, position: Position) -> None:
        if self.times and now_us // self._period_us <= self.times[-1] // self._period_us:
            return
        encoded = position.encode()
        self.times.append(now_us)
        self._positions.append(encoded)
        self.size_bytes += len(encoded)
        while self.times[0] < now_us - self._periods_max * self._period_us:
            self.drop()

    def find(self, wanted_us: int) -> Position | None:
        place = bisect_right(self.times, wanted_us)
        return decode_position(self._positions[place - 1]) if place else None

    def drop(self) -> None:
        self.times.popleft()
        self.size_bytes -= len(self._positions.popleft())

    def clear(self) -> None:
        self.times.clear()
        self._positions.clear()
        self.size_bytes = 0


def find_start(index: TimeIndex | None, timestamp_us: int, search_log: Callable[[int], Position]) -> Position:
    """The position for a time: from the index if it reaches back that far, else from the log."""
    found = None if index is None else index.find(timestamp_us)
    return search_log(timestamp_us) if found is None else found
