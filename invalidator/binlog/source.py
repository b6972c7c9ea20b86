"""A source that reads the binary log of MySQL or MariaDB as a replica does.

A thread receives and decodes while the caller applies; between them is a bounded mailbox, and errors travel
through it behind the transactions that came before them. This module never reconnects and never chooses a
position: after an error the caller opens it again from what was acknowledged (F14). Built by the composition root,
used as `freshness.stream.source.Source`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final

import pymysql

from freshness.config.keyspace import SkippedTransaction
from freshness.config.server import ServerAddress
from freshness.database.connection import Connection, connect, connected, translated
from freshness.database.foreignkey import Cascades, find_cascades
from freshness.errors import FreshnessError, SourceUnavailable, StreamStopped
from freshness.objects.registry import ObjectDefinition
from freshness.position import Position, parse_gtid
from freshness.stream.heartbeat import HEARTBEAT_TABLE
from freshness.stream.source import Transaction
from invalidator.binlog.decoder import EventDecoder
from invalidator.binlog.dump import force_close, request_stream, shut_down
from invalidator.binlog.fasttrack import FastTrack, make_decoder
from invalidator.binlog.rows.layout import read_period
from invalidator.binlog.transaction import Subscription
from invalidator.binlog.wire.packets import PacketReader
from invalidator.mailbox import QUEUE_BOUNDS, TRANSACTION_ROWS_MAX, Mailbox, QueueBounds, measure
from invalidator.replica.server import check_start

READ_TIMEOUT_SECONDS: Final = 15.0
HEARTBEAT_SECONDS: Final = 4.0
"""The server's own, on an idle stream: several within `READ_TIMEOUT_SECONDS`, or it would look dead."""

JOIN_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Skips:
    """The transactions that are delivered without their changes, with all tables that they name raised. ``on_skip``
    is called for each that comes, in the thread that decodes."""

    transactions: Sequence[SkippedTransaction] = ()
    on_skip: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Intake:
    """How transactions are taken from the log.

    ``piece_rows``: the rows of a piece, about: longer transactions are delivered in pieces
    (`Transaction.is_last`); without it one of more than `TRANSACTION_ROWS_MAX` rows raises its tables. ``queue``: the
    transactions that wait for the caller. ``pause_seconds``: the pause between two reads of the socket, for a caller
    that need not know at once: many transactions together cost much less.
    """

    piece_rows: int | None = None
    queue: QueueBounds = QUEUE_BOUNDS
    pause_seconds: float = 0.0


NO_SKIPS: Final = Skips()
INTAKE: Final = Intake()


class BinlogSource:
    """See the module. `open`, `poll` and `close` belong to one thread of the caller. ``heartbeat_table``: the table
    whose rows are heartbeats."""

    heartbeat_table: ClassVar[str] = HEARTBEAT_TABLE

    def __init__(
        self,
        address: ServerAddress,
        flavor: str,
        tables: Set[str],
        *,
        cascades: Cascades | None = None,
        definitions: Mapping[str, ObjectDefinition] | None = None,
        skips: Skips = NO_SKIPS,
        intake: Intake = INTAKE,
    ) -> None:
        """``cascades``: the foreign keys known to the caller, beside those that the server shows at each `open`.
        ``definitions``: the objects whose cache items are delivered instead of rows, many times faster
        (`Transaction.items`).
        """
        self._address = address
        self._flavor = flavor
        self._intake = intake
        # A set that matches names is no longer one after a subtraction, and has no heartbeats.
        self._tables = tables - {self.heartbeat_table} if self.heartbeat_table in tables else tables
        self._known_cascades = dict(cascades or {})
        subscription = Subscription(
            flavor,
            address.database,
            self._tables,
            self.heartbeat_table,
            {parse_gtid(flavor, each.gtid): each for each in skips.transactions},
            skips.on_skip,
        )
        self._decoder = make_decoder(
            subscription,
            find_cascades=self._find_cascades,
            rows_max=TRANSACTION_ROWS_MAX,
            piece_rows=intake.piece_rows,
            definitions=definitions,
            find_period=partial(read_period, address),
        )
        self._reader: _Reader | None = None

    def open(self, start: Position) -> None:
        """See `Source.open`. An empty ``start`` is the beginning of all history, and refused by a server that has
        purged it.
        """
        self.close()
        connection = connect(self._address, read_timeout_seconds=READ_TIMEOUT_SECONDS)
        try:
            check_start(connection, self._flavor, start, self._address)
            packets, has_checksum = request_stream(connection, self._flavor, start, HEARTBEAT_SECONDS)
            # The server refuses a position in its first answer, or else begins with a ROTATE event.
            first = packets.read()
            self._decoder.restart(has_checksum=has_checksum)
        except Exception as error:
            force_close(connection)
            raise translated(error, self._address, "starting to stream") from error
        mailbox = Mailbox(measure, self._intake.queue)
        self._reader = _Reader(
            connection, self._address, self._decoder, mailbox, packets, first, self._intake.pause_seconds
        )
        self._reader.start()

    def poll(self, timeout_seconds: float, transactions_max: int) -> list[Transaction]:
        if self._reader is None:
            raise SourceUnavailable(f"the stream of {self._address.host}:{self._address.port} is not open")
        return self._reader.mailbox.take(timeout_seconds, transactions_max)

    def close(self) -> None:
        """See `Source.close`. Returns within `JOIN_SECONDS`."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.stop()

    def _find_cascades(self) -> Cascades:
        doing, seconds = "reading the foreign keys", READ_TIMEOUT_SECONDS
        with connected(self._address, doing, timeout_seconds=seconds) as connection:
            found = find_cascades(connection, self._address.database, self._tables)
        for child, parents in self._known_cascades.items():
            found[child] = found.get(child, frozenset()) | parents
        return found


@dataclass(slots=True)
class _Reader:
    """The thread that receives, decodes, and puts into the mailbox, until an error or `stop`."""

    connection: Connection
    address: ServerAddress
    decoder: EventDecoder | FastTrack
    mailbox: Mailbox[Transaction]
    packets: PacketReader
    first: list[bytes]
    pause_seconds: float
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        name = f"binlog {self.address.host}:{self.address.port}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """End the thread: it waits either in the mailbox or in the socket."""
        self.mailbox.close()
        shut_down(self.connection)
        self.thread.join(JOIN_SECONDS)
        force_close(self.connection)

    def _run(self) -> None:
        try:
            packets = self.first
            while True:
                found: list[Transaction] = []
                try:
                    self.decoder.decode(packets, found)
                finally:
                    # Transactions before an error are delivered before it.
                    is_wanted = self.mailbox.put(found)
                if not is_wanted:
                    return
                if self.pause_seconds:
                    time.sleep(self.pause_seconds)
                packets = self.packets.read()
        except Exception as error:  # noqa: BLE001 - it must reach the caller, whatever it is
            self.mailbox.fail(self._describe(error))
        finally:
            force_close(self.connection)

    def _describe(self, error: Exception) -> FreshnessError:
        if isinstance(error, (FreshnessError, pymysql.MySQLError, OSError)):
            described = translated(error, self.address, "streaming")
        else:
            described = StreamStopped(
                f"{self.address.host}:{self.address.port}: an event could not be decoded: {error!r}",
                hint="report it with the server's version",
            )
        if described is not error:
            described.__cause__ = error
        return described
